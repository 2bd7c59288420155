"""The types of what ``check``, ``migrate``, ``verify`` and ``audit`` return."""

from pmapx._src.audit.report.audit_report import AuditedFunction, AuditReport, Exchange, Leaf
from pmapx._src.audit.report.baseline import Change, Comparison
from pmapx._src.codemod.program import Migration
from pmapx._src.lint.check import Report as CheckReport
from pmapx._src.lint.finding import Finding
from pmapx._src.verify.compare.result import SiteResult, Verification

__all__ = [
    "AuditReport",
    "AuditedFunction",
    "Change",
    "CheckReport",
    "Comparison",
    "Exchange",
    "Finding",
    "Leaf",
    "Migration",
    "SiteResult",
    "Verification",
]
