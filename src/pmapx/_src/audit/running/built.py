"""``pmapx audit --build module:function``: audits what a function builds; no program is run."""

import os
import sys
from pathlib import Path

from pmapx._src.audit import examine
from pmapx._src.audit.running.request import Request, function_named, progress
from pmapx._src.errors import PmapxError
from pmapx._src.watch import record_files


def main() -> None:
    """Writes the record of an audit of what the ``build`` function of the request returns."""
    request = Request.from_environment()
    try:
        build = function_named(str(request.build))
        where = request.topology or "the devices of this machine"
        progress(f"compiling {request.build} for {where}")
        report = examine.report_on(
            None,
            (),
            {},
            request.topology,
            request.scaling,
            build,
            request.scale,
            request.what_if,
            progress,
        )
    except PmapxError as error:
        sys.exit(f"pmapx: {str(error).partition(chr(10) + '  code:')[0]}")
    record_files.write(Path(os.environ["PMAPX_RECORDS"]), "audit", report.to_dict())


if __name__ == "__main__":
    main()
