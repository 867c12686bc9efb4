"""One HTML file about a compilation: `compiled.report("report.html")`."""

from .facts import facts as facts
from .page import page as page
from .page import write as write
