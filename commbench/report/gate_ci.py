"""A gate's verdict for machines of CI: JUnit, and the annotations of GitHub Actions."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree as ET

from commbench.analyze.verdicts import CurveVerdict, GateReport
from commbench.report.gate import HEADLINES, curve_lines, curve_name, headline, hit_words, report_lines
from commbench.report.text import clean


def junit(report: GateReport) -> str:
    """A test suite with a case a curve: a regression is a failure, what cannot be told an error.

    Errors and not skipped tests: most tools show a skipped test as fine.
    """
    cases = [_case(curve) for curve in report.curves] or [_refused(report)]
    suite = ET.Element(
        "testsuite",
        name="commbench gate",
        tests=str(len(cases)),
        failures=str(sum(case.find("failure") is not None for case in cases)),
        errors=str(sum(case.find("error") is not None for case in cases)),
    )
    suite.extend(cases)
    suites = ET.Element("testsuites")
    suites.append(suite)
    ET.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def github_annotations(report: GateReport) -> Iterator[str]:
    """Workflow commands: an error a regression, a warning for what cannot be told.

    https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions
    """
    for curve in report.curves:
        if curve.verdict == "pass":
            continue
        kind = "error" if curve.verdict == "regression" else "warning"
        yield _command(kind, f"commbench gate: {HEADLINES[curve.verdict]}", f"{curve_name(curve)}: {_message(curve)}")
    if not report.curves:
        reasons = "; ".join(text for _, text in report_lines(report))
        yield _command("warning", f"commbench gate: {headline(report)}", reasons)


def _case(curve: CurveVerdict) -> ET.Element:
    case = ET.Element("testcase", classname="commbench.gate", name=curve_name(curve))
    details = "\n".join(f"{label}: {text}" for label, text in curve_lines(curve))
    if curve.verdict == "pass":
        ET.SubElement(case, "system-out").text = details
    else:
        tag, message = ("failure" if curve.verdict == "regression" else "error"), _message(curve)
        ET.SubElement(case, tag, type=curve.verdict, message=message).text = details
    return case


def _refused(report: GateReport) -> ET.Element:
    case = ET.Element("testcase", classname="commbench.gate", name="comparison")
    text = "\n".join(text for _, text in report_lines(report))
    ET.SubElement(case, "error", type=report.verdict, message=headline(report)).text = text
    return case


def _message(curve: CurveVerdict) -> str:
    parts = list(map(hit_words, curve.hits)) or [clean(reason, 400) for reason in curve.reasons]
    return "; ".join(parts) or HEADLINES[curve.verdict]


def _command(kind: str, title: str, message: str) -> str:
    value = _escaped(title).replace(":", "%3A").replace(",", "%2C")
    return f"::{kind} title={value}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
