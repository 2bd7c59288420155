from collections.abc import Iterator

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import STATEMENTS, Module
from pmapx._src.analysis.values import Place
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import Rule


class UnreadFile(Rule):
    """A file could not be checked, or only in part.

    **What.** A file that cannot be opened or is too large, or one that mentions what the rules
    look for and is binary, wrongly encoded, nested too deeply or not valid Python. Also a
    notebook's cell that does not parse, while the other cells are checked, and a file whose calls
    lead through so much code that not all of them are followed.

    **Why.** Findings in code that is not read would be missed silently.

    **Before**

    ```python
    import jax
    step = jax.pmap(train_step
    ```

    **After**

    ```python
    import jax
    step = jax.jit(train_step)
    ```

    **Safety.** Nothing is changed. Leave files out with ``exclude`` in ``[tool.pmapx]``.

    **Guide.** The guide does not mention it.
    """

    code = "PMX500"
    names = ()

    def check(self, module: Module) -> Iterator[Finding]:
        if place := module.facts.exhausted.get("statements"):
            yield self.finding(
                place,
                f"checked in part: calls lead through more than {STATEMENTS:,} statements; "
                "those from here on are not followed",
            )
        problems = module.source.problems
        # The names that led here may be in a picture or in prose.
        texts = [module.source.text, *(text for _, _, text in problems)] if problems else []
        if not any(known_names.is_followed(text.encode("utf-8", "replace")) for text in texts):
            return
        for number, reason, _ in problems:
            place = Place(module.path, 1, 0, 1, 0)
            yield self.finding(place, f"cell {number} is not checked: {reason}")

    @classmethod
    def of_file(cls, path: str, reason: str) -> Finding:
        """Returns the finding for a file that could not be read."""
        return Finding(cls.code, f"not checked: {reason}", Place(path, 1, 0, 1, 0))
