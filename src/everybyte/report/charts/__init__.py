"""The pictures, each a Vega-Lite specification as plain data: the same for the page, a notebook, a report and a file.

Every picture is a function from an answer (or a sweep, or comparisons) to a dict. Its `description` says in a sentence what it shows, its data are inline,
and its tooltips give exact sizes. `draw` makes SVG or PNG of one without a browser.
"""

from __future__ import annotations

from everybyte.report.charts.card import card
from everybyte.report.charts.draw import draw
from everybyte.report.charts.knob import knob
from everybyte.report.charts.phases import phases
from everybyte.report.charts.places import places
from everybyte.report.charts.ranks import ranks
from everybyte.report.charts.spec import Spec, together
from everybyte.report.charts.truth import truth
from everybyte.report.palette import Theme

__all__ = ["Spec", "Theme", "card", "draw", "knob", "phases", "places", "ranks", "together", "truth"]
