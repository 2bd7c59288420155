"""The files of a program that are read together, and what becomes of each."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from pmapx._src.analysis.known_names import is_followed
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.project import MOST_OTHERS, Project
from pmapx._src.analysis.sites import Site, find_sites
from pmapx._src.codemod import hidden_uses, program_files, to_pmapx
from pmapx._src.codemod.decide import nested_pmaps
from pmapx._src.codemod.decide.process_model import Surroundings
from pmapx._src.codemod.evidence.evidence import Evidence
from pmapx._src.codemod.forms import shard_body
from pmapx._src.codemod.merged import merging
from pmapx._src.codemod.replicated import style as replicated
from pmapx._src.codemod.replicated.maps import SiteKey
from pmapx._src.codemod.text import imports
from pmapx._src.codemod.to_jit.conversion import Form
from pmapx._src.codemod.unused_names import without_unused
from pmapx._src.codemod.write import common_functions
from pmapx._src.codemod.write.common_functions import CommonFunctions
from pmapx._src.codemod.write.plans import Plan
from pmapx._src.codemod.write.rewrite import NOT_WRITTEN, Outcome, Rewriting, plan, rewrite
from pmapx._src.codemod.write.shared_module import SharedModule
from pmapx._src.codemod.write.spelled_out import spelled_out
from pmapx._src.source import files as sources
from pmapx._src.source.discovery import Unreadable, files_below
from pmapx._src.source.location import Place
from pmapx._src.source.rewriting import notebook_edits
from pmapx._src.source.rewriting.edits import Edit, Origins

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Migration:
    """All files with a use of pmap, what became of each use, and files that were not read."""

    files: tuple[Rewriting, ...]
    unreadable: tuple[Unreadable, ...]
    read: int
    # In the replicated style: what is replicated now, and what stays stacked.
    gains: tuple[replicated.Gain, ...] = ()
    stays: tuple[replicated.Stay, ...] = ()
    renamed: int = 0  # Names that JAX removed, and that are replaced.
    # With ``to="jit"``: what became of each map, and the migration to the global form before that.
    forms: tuple[Form, ...] = ()
    global_form: Migration | None = None
    old_comments: tuple[tuple[str, int], ...] = ()  # On pmap, beside changes: paths, lines.
    failure: Exception | None = None  # A bug of pmapx that left only the stacked style.

    @property
    def changed(self) -> tuple[Rewriting, ...]:
        return tuple(file for file in self.files if file.is_changed)

    @property
    def left(self) -> tuple[Outcome, ...]:
        return tuple(each for file in self.files for each in file.outcomes if each.reason)


class Program:
    """Files that are read together, and what becomes of each."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.project = Project(paths)
        # What all files show together, and each of them, by its normal path.
        self.around = Surroundings()
        self._shown: dict[str, Surroundings] = {}
        self._counts: dict[Place, list[bool]] = {}
        # The module of what files share, if the user names one.
        self.shared: SharedModule | None = None
        self.is_last_form = False  # The jit form edits each map again.
        self._paths = paths
        self._texts: dict[str, bytes] = {}
        self._unreadable: list[Unreadable] = []
        # Uses of pmap that can be rewritten only in the stacked style, and why.
        self.refused: dict[Place, str] = {}
        # What was done to the files, and their texts before that.
        self._restyled = replicated.Restyled({})
        self._before: Mapping[str, bytes] = self._texts

    @property
    def paths(self) -> Sequence[str]:
        return self._paths

    @classmethod
    def read(
        cls, paths: Sequence[str], exclude: Sequence[str], progress: Progress | None
    ) -> Program:
        """Returns the program below the paths, with the files that may have something to change."""
        found = list(files_below(paths, exclude=exclude))
        given = [item for item in found if not isinstance(item, Unreadable)]
        program = cls(given)
        program._unreadable += [item for item in found if isinstance(item, Unreadable)]
        for number, path in enumerate(given):
            data = sources.read_bytes(path)
            if isinstance(data, Unreadable):
                program._unreadable.append(data)
            else:
                program.add(path, data)
            if progress is not None:
                progress(number, len(given))
        return program

    def add(self, path: str, data: bytes) -> None:
        """Reads a file if it may have something to change."""
        shown = self._shown[os.path.normpath(path)] = Surroundings.of(data)
        self.around |= shown
        # A file may have pmap from another of the project, without a word of JAX in it.
        is_telling = b"jax" in data or b"pmap" in data
        if (is_followed(data) and is_telling) or b"common_utils" in data:
            self._texts[path] = data
            self.project.module(path, data=data)

    def spelled_out(self) -> dict[str, list[Edit]]:
        """Returns the edits that spell out kept partials and wrappers of pmap at their uses."""
        modules = [module for _, module in self._modules()]
        sites = [site for module in modules for site in find_sites(module)]
        if not any(s.kind in ("partial", "wrapper") or s.has_unpacked_options for s in sites):
            return {}
        # Maps of several processes are long.
        return spelled_out(modules, self._with_word, is_once=self.around.in_processes)

    def _with_word(self, word: bytes) -> list[Module | None]:
        """Returns the files without a use of pmap that have a word; None for an unreadable one."""
        found: list[Module | None] = []
        for path in self._paths:
            data = sources.read_bytes(path) if path not in self._texts else None
            if isinstance(data, bytes) and re.search(rb"\b" + word + rb"\b", data):
                found.append(self.project.module(path, data=data))
        return found

    def changed(self, edits: Mapping[str, Sequence[Edit]]) -> Program:
        """Returns the program with its files edited."""
        found = Program(self._paths)
        further = {path: self._text(path) for path in edits if path not in self._texts}
        before = {**self._texts, **further}
        texts = {
            path: notebook_edits.applied_to(path, data, edits.get(path, ()))
            for path, data in before.items()
        }
        found.project.texts = {os.path.normpath(path): data for path, data in texts.items()}
        for path, data in texts.items():
            found.add(path, data)
        found.around, found._unreadable = self.around, self._unreadable
        found._arounds = self._arounds
        found.shared, found.is_last_form = self.shared, self.is_last_form
        return found

    def _text(self, path: str) -> bytes:
        data = self._texts.get(path) or sources.read_bytes(path)
        return data if isinstance(data, bytes) else b""

    def with_places(self, done: Migration, edits: Mapping[str, Sequence[Edit]]) -> Migration:
        """Returns what became of the edited program, with the places of the files as they are."""
        origins = {
            path: notebook_edits.origins(path, self._text(path), several)
            for path, several in edits.items()
        }

        def was(place: Place) -> Place:
            return origins[place.path].place(place) if place.path in origins else place

        files = {file.path: file for file in done.files}
        for path, several in edits.items():
            before = self._text(path)
            after = notebook_edits.applied_to(path, before, several)
            file = files.get(path) or Rewriting(path, before, after, ())
            outcomes = tuple(
                dataclasses.replace(each, place=was(each.place)) for each in file.outcomes
            )
            files[path] = dataclasses.replace(file, before=before, outcomes=outcomes)
        return dataclasses.replace(
            done,
            files=tuple(sorted(files.values(), key=lambda file: self._paths.index(file.path))),
            gains=tuple(dataclasses.replace(each, site=was(each.site)) for each in done.gains),
            stays=tuple(dataclasses.replace(each, site=was(each.site)) for each in done.stays),
        )

    def _modules(self) -> list[tuple[str, Module]]:
        return [
            (path, module)
            for path in self._texts
            if (module := self.project.module(path)) is not None and not path.endswith(".pyi")
        ]

    @functools.cached_property
    def _arounds(self) -> dict[str, Surroundings]:
        """What is known of the program that each file is part of, by its normal path."""
        around = self.around
        if not (around.in_processes or around.takes_some or around.is_set_late):
            return {}
        modules = [module for _, module in self._modules()]
        return program_files.surroundings(modules, self.project.paths, self._shown)

    def _around(self, module: Module) -> Surroundings:
        return self._arounds.get(os.path.normpath(module.path), self.around)

    @functools.cached_property
    def plans(self) -> dict[Module, list[Plan]]:
        """What becomes of each use of pmap."""
        modules = [module for _, module in self._modules()]
        nested = nested_pmaps.nestings(modules)
        return {
            module: plan(
                module,
                nested=nested,
                around=self._around(module),
                replicated=self._replicated,
                counts=self._counts_before,
            )
            for module in modules
        }

    @functools.cached_property
    def written_out(self) -> list[Rewriting]:
        """Each file in plain JAX."""
        if self.shared is not None:
            self.shared.count_users()
            files = self._written()
            return self._written() if self.shared.share() else files
        is_last, write = self.is_last_form, self._written
        return common_functions.written(self._modules(), write) if is_last else write()

    def _written(
        self, given: Sequence[tuple[str, Module]] = (), common: CommonFunctions | None = None
    ) -> list[Rewriting]:
        ordered, shared = list(given or self._modules()), self.shared
        if shared is not None:
            # The names that the shared module uses itself are taken first.
            ordered.sort(key=lambda each: not shared.is_here(each[1]))
        done = {
            path: rewrite(
                module,
                self._texts[path],
                around=self._around(module),
                others=self.plans,
                shared=shared,
                common=common,
                moves_bodies=self.is_last_form,
            )
            for path, module in ordered
        }
        return [done[path] for path, _ in self._modules() if path in done]

    def with_shared_module(self, done: Migration) -> Migration:
        """Adds the module of what the rewritten files share.

        Raises:
          HelpersError: if it cannot have what they need.
        """
        shared = self.shared
        data = shared.written({f.path: f.after for f in done.changed}) if shared else None
        if shared is None or data is None:
            return done
        is_own = {file.path: os.path.realpath(file.path) for file in done.files}
        files = tuple(
            dataclasses.replace(file, after=data) if is_own[file.path] == shared.real else file
            for file in done.files
        )
        if shared.real not in is_own.values():
            files = (*files, Rewriting(shared.path, shared.data, data, ()))
        return dataclasses.replace(done, files=files)

    def rewritten(self, to: str) -> list[Rewriting]:
        """Returns each file as it would be."""
        if to != "pmapx":
            return self.written_out
        return [to_pmapx.rewrite(module, self._texts[path]) for path, module in self._modules()]

    @functools.cached_property
    def _origins(self) -> dict[str, Origins]:
        """Where each point of a file was before, of the files that were edited."""
        edits = self._restyled.edits
        return {
            path: notebook_edits.origins(path, self._before[path], edits[os.path.normpath(path)])
            for path in self._texts
            if edits.get(os.path.normpath(path))
        }

    def original(self, place: Place) -> Place:
        """Returns where a place was before the files were edited."""
        origins = self._origins.get(place.path)
        return place if origins is None else origins.place(place)

    def _keys(self, site: Site) -> set[SiteKey]:
        """Returns what the maps of a site are known by."""
        places = map(self.original, site.places)
        return {(place.path, place.line, place.column) for place in places}

    def _counts_before(self, site: Site) -> list[bool] | None:
        return self._counts.get(self.original(site.name))

    def _replicated(self, site: Site) -> frozenset[int]:
        """Returns the arguments of a site that were made replicated."""
        found = self._restyled.replicated
        keys = self._keys(site) if found else ()
        return frozenset(i for key in keys for i in found.get(key, ()))

    def _merge(self) -> bool:
        """Lets maps take and give merged arrays; returns whether all of them can."""
        arguments, results = self._restyled.merged_arguments, self._restyled.merged_results
        wanted = {*arguments, *results}
        for each in itertools.chain(*self.plans.values()) if wanted else ():
            for key in self._keys(each.use.site) & wanted:
                taken, given = (frozenset(table.get(key, ())) for table in (arguments, results))
                if each.merge(taken, given):
                    wanted.discard(key)
        return not wanted

    def migration(
        self,
        files: Sequence[Rewriting],
        gains: tuple[replicated.Gain, ...] = (),
        stays: tuple[replicated.Stay, ...] = (),
    ) -> Migration:
        """Returns what becomes of the files that have a use of pmap or a change."""
        kept = tuple(file for file in files if file.outcomes or file.is_changed)
        broken = [Unreadable(path, why) for path, why in self.project.unreadable.items()]
        unreadable = (*self._unreadable, *broken)
        return Migration(kept, unreadable, len(self._paths), gains, stays)

    def tidied(self, done: Migration, *, has_notebooks: bool = True) -> Migration:
        """Removes what the files used before, and do not use any more."""
        modules = {module.path: module for _, module in self._modules()}

        @functools.cache
        def hidden(path: str) -> dict[str, tuple[int, int]]:
            return hidden_uses.hidden_words(modules[path].source, self._text(path))

        def is_used_elsewhere(path: str, name: str) -> bool:
            if path not in modules or name in hidden(path):
                return True
            return imports.may_be_imported(modules[path], name)

        def tidy(file: Rewriting) -> Rewriting:
            if not file.is_changed or (file.path.endswith(".ipynb") and not has_notebooks):
                return file
            is_used = functools.partial(is_used_elsewhere, file.path)
            after = without_unused(file.path, file.before, file.after, is_used)
            return dataclasses.replace(file, after=after)

        return dataclasses.replace(done, files=tuple(map(tidy, done.files)))

    def restyled(
        self, evidence: Evidence, named: Sequence[str], to: str, *, is_merging: bool
    ) -> replicated.Restyled:
        """Returns what becomes of the state, and of batches."""
        # State goes through files that do not mention pmap, too; one may need another early.
        project = Project(self._paths, others=MOST_OTHERS, has_definitions=True)
        texts = {**self._texts, **program_files.importers(self._paths, self._texts)}
        project.texts = {os.path.normpath(path): data for path, data in texts.items()}
        for path, data in texts.items():
            project.module(path, data=data)
        modules, stays = [], []
        for module in filter(None, project.modules.values()):
            why = hidden_uses.reason(module, self._text(module.path))
            if not why:
                modules.append(module)
            for site in find_sites(module) if why else ():
                stays.append(replicated.Stay(site.place, site.function, why, site.name))
        taking = [each for each in itertools.chain(*self.plans.values()) if each.takes_merged]
        wrapped = [each for each in taking if not shard_body.has_own_body(each.use)]
        # Specs of fields are names, of the function that the map is made in.
        named_specs = [each for each in taking if to != "pmapx" and not each.use.is_made_again]
        restyled = replicated.restyle(
            modules,
            evidence,
            named,
            self._left | self.refused,
            merge=merging.merge if is_merging else None,
            mergeable=_places(taking),
            wrapped=_places(wrapped),
            splittable=_places(named_specs),
            has_helper_function=to == "pmapx",
            in_processes=lambda module: self._around(module).in_processes,
        )
        return dataclasses.replace(restyled, stays=(*restyled.stays, *stays))

    @functools.cached_property
    def _left(self) -> dict[Place, str]:
        """The uses of pmap that are not rewritten in any style, and why."""
        return {
            outcome.place: f"it is left unchanged: {outcome.reason}"
            for file in self.written_out
            for outcome in file.outcomes
            if outcome.reason
        }

    def rewritten_after(self, restyled: replicated.Restyled, to: str) -> list[Rewriting] | None:
        """Returns each file rewritten after it was restyled, with places of the file as it was.

        None if a file, or a map that takes merged batches, cannot be written so after all; the
        uses of pmap in such a file are ``refused`` then.
        """
        if not restyled.edits:
            return self.rewritten(to)
        changed = Program(self._paths)
        after: dict[str, bytes] = {}
        for path in self._paths:
            edits = restyled.edits.get(os.path.normpath(path), ())
            data = self._texts.get(path) or (sources.read_bytes(path) if edits else None)
            if isinstance(data, bytes):
                after[path] = notebook_edits.applied_to(path, data, edits)
        changed.project.texts = {os.path.normpath(path): data for path, data in after.items()}
        for path in after:
            # All of them: what was edited may not have a word of pmap any more, or never had one.
            changed._texts[path] = after[path]
            module, was = changed.project.module(path, data=after[path]), self.project.module(path)
            if module is not None and was is not None:
                module.source.before = was.source
        changed.around, changed.shared, changed._arounds = self.around, self.shared, self._arounds
        changed.is_last_form = self.is_last_form
        uses = [each.use for each in itertools.chain(*self.plans.values())]
        changed._counts = {use.site.name: use.shard_counts for use in uses}
        before = {path: self._text(path) for path in after}
        changed._restyled, changed._before = restyled, before
        if to != "pmapx" and not changed._merge():
            return None
        files: list[Rewriting] = []
        refused: dict[Place, str] = {}
        for file in changed.rewritten(to):
            outcomes = tuple(
                dataclasses.replace(outcome, place=changed.original(outcome.place))
                for outcome in file.outcomes
            )
            is_edited = bool(restyled.edits.get(os.path.normpath(file.path)))
            refused |= {
                each.place: each.reason
                for each in outcomes
                if each.reason.startswith(NOT_WRITTEN)
                and (is_edited or each.place not in self._left)
            }
            file = dataclasses.replace(file, before=before[file.path], outcomes=outcomes)
            files.append(file)
        if refused:
            self.refused |= refused
            return None
        return sorted(files, key=lambda file: self._paths.index(file.path))


def _places(plans: Iterable[Plan]) -> set[Place]:
    return {place for each in plans for place in each.use.site.places}
