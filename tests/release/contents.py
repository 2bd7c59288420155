"""Compares what a wheel and an sdist hold with the checkout; `make test-wheel` runs it."""

import subprocess
import sys
import tarfile
import zipfile


def main(wheel: str, sdist: str) -> None:
    tracked = set(subprocess.check_output(["git", "ls-files"], text=True).splitlines())
    package = {path.removeprefix("src/") for path in tracked if path.startswith("src/pmapx/")}
    in_wheel = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("pmapx/")}
    check("the wheel", in_wheel, package)
    with tarfile.open(sdist) as archive:
        held = {member.name.partition("/")[2] for member in archive if member.isfile()}
    check("the sdist", held - {"PKG-INFO"}, tracked)
    print(f"{len(in_wheel)} files in the wheel, {len(held)} in the sdist, as in the checkout")


def check(what: str, held: set[str], wanted: set[str]) -> None:
    missing, others = sorted(wanted - held), sorted(held - wanted)
    if missing or others:
        sys.exit(f"{what} lacks {missing} and has {others}, which the checkout has not")


if __name__ == "__main__":
    main(*sys.argv[1:])
