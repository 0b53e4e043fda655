"""Plants bugs in the modules that protect data, one at a time, and reports those that no test notices.

`python -m tests.mutation --module src/ottla/broker/storage/retention.py --sample 20 --seed 1`
`python -m tests.mutation --map`  records which tests reach which functions; it takes as long as the tests twice.

The exit code is 1 if a mutant survives that is not in equivalent.toml.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence

from tests.mutation import call_record, equivalents
from tests.mutation.call_recorder import OUTPUT
from tests.mutation.mutants import Mutant
from tests.mutation.report import survivors, table
from tests.mutation.runner import BrokenTestsError, Result, Runner, Verdict
from tests.mutation.sandbox import Sandbox
from tests.mutation.selection import RECORD, RECORDED_TESTS, SECONDS_MAX, Selection
from tests.mutation.targets import NoSuchModuleError, modules, mutants_of

RECORD_SECONDS_MAX = 4 * 3600.0
BAD_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.map:
        return record_calls(options.map_tests or RECORDED_TESTS)
    try:
        chosen = choose(options.module, options.operator, options.sample, options.seed)
    except NoSuchModuleError as error:
        print(error, file=sys.stderr)
        return BAD_USAGE
    if options.list:
        for mutant in chosen:
            print(f"{mutant.module}:{mutant.line}: {mutant.operator}\n{mutant.diff}\n")
        return 0
    selection = Selection(seconds_max=options.test_seconds)
    if not selection.is_recorded:
        print("without a record of calls (--map), the tests that import a module are run", flush=True)
    reasons = equivalents.read()
    known = [Result(each, Verdict.EQUIVALENT, reasons[each.identity]) for each in chosen if each.identity in reasons]
    unknown = [each for each in chosen if each.identity not in reasons]
    runner = Runner(selection, options.simulation_seeds, time.monotonic() + options.budget)
    try:
        results = [*known, *runner.run_all(unknown, options.jobs, _print)]
    except BrokenTestsError as error:
        print(error, file=sys.stderr)
        return BAD_USAGE
    for test in sorted(runner.broken):
        print(f"left out, because it fails without a mutant: {test}")
    print(f"\n{survivors(results)}\n{table(results)}")
    return int(any(result.verdict is Verdict.SURVIVED for result in results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tests.mutation", description="Test the tests by planting bugs.")
    parser.add_argument("--module", action="append", default=[], help="a path or a dotted name; may be repeated")
    parser.add_argument("--operator", action="append", default=[], help="only mutants of this kind; may be repeated")
    parser.add_argument("--sample", type=int, help="run only this many mutants, chosen at random")
    parser.add_argument("--seed", type=int, default=0, help="seed of the choice (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, help="mutants to run at the same time (default: 1)")
    parser.add_argument("--budget", type=float, default=float("inf"), help="begin no mutant after this many seconds")
    parser.add_argument(
        "--test-seconds", type=float, default=SECONDS_MAX, help="run tests of this many seconds for each mutant"
    )
    parser.add_argument("--simulation-seeds", type=int, default=0, help="also run this many seeds of the simulation")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    parser.add_argument("--map", action="store_true", help="record which tests reach which functions, and run nothing")
    parser.add_argument("map_tests", nargs="*", help="with --map: record these tests, and keep the record of others")
    return parser


def choose(names: Sequence[str], operators: Sequence[str], sample: int | None, seed: int) -> list[Mutant]:
    """Returns the mutants to run, in the order of their modules and lines."""
    found = [mutant for module in modules(names) for mutant in mutants_of(module)]
    if operators:
        found = [mutant for mutant in found if mutant.operator in operators]
    if sample is None or sample >= len(found):
        return found
    places = sorted(random.Random(seed).sample(range(len(found)), sample))
    return [found[place] for place in places]


def record_calls(tests: Sequence[str]) -> int:
    """Runs tests and merges their calls into the record."""
    with Sandbox() as sandbox:
        output = sandbox.root / "calls.json"
        plugin = ["-p", "tests.mutation.call_recorder", "-p", "no:cacheprovider"]
        ended = sandbox.run(["-m", "pytest", "-q", *plugin, *tests], RECORD_SECONDS_MAX, {OUTPUT: str(output)})
        print(ended.output[-2000:])
        if not output.exists():
            return BAD_USAGE
        recorded = call_record.load(output)
    call_record.save(RECORD, {**call_record.load(RECORD), **recorded})
    print(f"{len(recorded)} tests recorded in {RECORD.relative_to(RECORD.parents[2])}")
    return 0


def _print(result: Result) -> None:
    mutant = result.mutant
    print(f"{result.verdict.value:<10} {mutant.module}:{mutant.line} {mutant.operator} {result.reason}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
