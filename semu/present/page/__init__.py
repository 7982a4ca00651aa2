"""Results as one HTML file that opens offline: ``Page``.

Files:

    page.py          ``Page``: sections in order, and the file; ``Column``
    arrays.py        numbers as compressed arrays in a page
    timelines.py     stages, transfers, the critical path and memory of one or two runs
    results.py       the page of a report, and sections that pages of other results share
    assets/          what runs in the browser: style, scripts, and uPlot (assets/vendor, its licence beside it)

Text and tables are plain HTML, so that they print and are read aloud; scripts add sorting, zoom and charts. Nothing is
loaded: a content security policy in the file forbids every request.
"""

from semu.present.page.page import Column, Page

__all__ = ["Column", "Page"]
