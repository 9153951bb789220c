"""Answers jobs and shows them: what `estimate`, `train` and `serve` do alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from everybyte.basics.errors import BadInput, EverybyteError
from everybyte.cli.ending import BAD_INPUT, DOES_NOT_FIT, FITS, refuse, say, told, unexpected
from everybyte.cli.progress import Progress

if TYPE_CHECKING:
    from everybyte.job import Job, RawJob
    from everybyte.ledger.answer import Answer
    from everybyte.plan.start.start import Started
    from everybyte.plan.start.taken import Taken


class Options(NamedTuple):
    """The options of `options.answer_options`."""

    as_json: bool
    explain: bool = False
    unit: str = "GiB"
    given_file: str | None = None
    chart: str | None = None
    apply: int | None = None
    picture: str | None = None


class Source(NamedTuple):
    """A job that is still to be loaded and checked, and what to call it if it cannot even be loaded. `start` fills in what flags leave open."""

    name: str
    load: Callable[[], RawJob]
    start: Callable[[Job], Started] | None = None
    save: Callable[[Job], None] | None = None
    """Where the job that is answered is written to."""


def answer_files(jobs: Sequence[str], options: Options) -> int:
    """Answers the jobs of files, as `answer_all` does."""
    from everybyte.cli.any_job import load_any

    return answer_all([Source(job, lambda job=job: load_any(job)) for job in jobs], options)  # type: ignore[misc]  # the default binds the loop's value


def answer_all(sources: Sequence[Source], options: Options) -> int:
    """Answers each job in order, shows each answer as soon as it is there; the exit code: 2 if any input was bad, else 1 if any job does not fit."""
    if options.chart and len(sources) > 1:
        raise BadInput("--chart", "draws one job; give one")
    if options.picture and not options.chart:
        raise BadInput("--picture", "chooses what --chart draws; name a file with --chart")
    given = read_given(options.given_file)
    codes = []
    with Progress("answering", len(sources)) as progress:
        for source in sources:
            codes.append(_answer_one(source, given, options, progress, several=len(sources) > 1))
            progress.advance()
    return max(codes)


def read_given(path: str | None) -> dict[str, Any]:
    """The figures of a --given file. Raises BadInput."""
    if path is None:
        return {}
    from everybyte.job import load

    figures = load(path).mapping
    inner = figures.get("given")
    return inner if isinstance(inner, dict) else figures


def with_given(job: Job, given: dict[str, Any]) -> Job:
    """The job with further known figures. Raises BadInput for unknown ones."""
    if not given:
        return job
    from everybyte.job import job_to_dict, read_job

    raw = job_to_dict(job)
    return read_job({**raw, "given": {**raw.get("given", {}), **given}})


def _answer_one(source: Source, given: dict[str, Any], options: Options, progress: Progress, *, several: bool) -> int:
    name = source.name
    try:
        raw = source.load()
        name = raw.name or name
        job = with_given(raw.job(), given)
        job, answer = _answered(job, source, options.apply)
        if source.save is not None:
            source.save(job)
        with progress.away():
            _show(answer, job, options, several=several)
    except BadInput as error:
        fault = error
    except EverybyteError as error:
        fault = BadInput("", str(error))
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except Exception as error:  # noqa: BLE001  # one job must not take the others down with it
        fault = BadInput("", unexpected(error))
    else:
        return exit_code(answer)
    return _show_error(source, name, fault, options, progress, several=several)


def exit_code(answer: Answer) -> int:
    """0 for what fits or is close, which the headline says; 1 for what does not fit."""
    return DOES_NOT_FIT if answer.verdict == "does not fit" else FITS


def _answered(job: Job, source: Source, number: int | None) -> tuple[Job, Answer]:
    """The job as it is answered, and its answer; with a number, both with that line of advice applied."""
    from everybyte.plan.answer import answered

    full, remake = job, None
    taken: Taken = {}
    if source.start is not None:
        full, taken = source.start(job)
        remake = _again(job, source.start)
    answer = answered(full, taken, remake)
    if number is None:
        return full, answer
    from everybyte.plan.advice.apply import apply, chosen

    row = chosen(answer.advice, number, "--apply")
    say(f"applied: {row['flags']} ({row['price']})", to_stderr=True)
    full = apply(full, row["change"])
    return full, answered(full, {path: origin for path, origin in taken.items() if path not in row["change"]}, remake)


def _again(job: Job, start: Callable[[Job], Started]) -> Callable[[Mapping[str, Any]], Job]:
    """Makes a job anew with settings changed: what flags left open is filled in again."""
    from everybyte.plan.start.taken import with_settings

    return lambda settings: start(with_settings(job, settings)).job


def _show_error(source: Source, name: str, error: BadInput, options: Options, progress: Progress, *, several: bool) -> int:
    """An error line for programs; for people a message, which of several jobs says whose it is."""
    with progress.away():
        return _print_error(source, name, error, options, several=several)


def _print_error(source: Source, name: str, error: BadInput, options: Options, *, several: bool) -> int:
    if options.as_json:
        from everybyte.report.as_json import error_object, line

        say(line(error_object(name, error)))
        return BAD_INPUT
    return refuse(f"{source.name}: {told(error)}" if several and not str(error).startswith(source.name) else told(error))


def _show(answer: Answer, job: Job, options: Options, *, several: bool) -> None:
    if options.chart:
        from everybyte.report.charts.write import write_chart

        write_chart(answer, job, options.chart, options.picture)
        say(f"wrote {options.chart}", to_stderr=True)
    print_answer(answer, as_json=options.as_json, explain=options.explain, unit=options.unit)
    if several and not options.as_json:
        say()


def print_answer(answer: Answer, *, as_json: bool, explain: bool, unit: str) -> None:
    """An answer on standard output: a line of JSON, or the screen, with `explain` also the whole ledger."""
    if as_json:
        from everybyte.report.as_json import answer_object, line

        say(line(answer_object(answer)))
        return
    from everybyte.report.console import open_console
    from everybyte.report.estimate import show_answer
    from everybyte.report.explain import show_ledger

    console = open_console()
    show_answer(console, answer, unit)
    if explain:
        console.print()
        show_ledger(console, answer, answer.worst)
