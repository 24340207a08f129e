"""Tables of numbers as text, HTML, rich and pandas, all from one description."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from html import escape
from typing import Any

MAX_ROWS = 30  # shown; `to_frame` has them all

Cell = float | str
FIVE_DIGITS = ".5g"


@dataclasses.dataclass(frozen=True)
class Table:
    """Named rows of cells under column heads.

    Attributes:
        title: shown above it; empty: none.
        columns: one head for each cell of a row; all empty: no line of heads.
        rows: (name, cells). A float is shown to five digits (NaN: "-"), a string as it is.
        formats: how the floats of each column are shown, as in Python's `format`; "p" is a p value.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, tuple[Cell, ...]]]
    formats: tuple[str, ...] = ()

    def __post_init__(self):
        for name, cells in self.rows:
            if len(cells) != len(self.columns):
                raise ValueError(
                    f"row {name!r} has {len(cells)} cells for {len(self.columns)} columns."
                )

    @property
    def shown(self) -> list[tuple[str, tuple[str, ...]]]:
        """The first rows, every cell as text."""
        how = self.formats or (FIVE_DIGITS,) * len(self.columns)
        return [(name, tuple(map(as_text, cells, how))) for name, cells in self.rows[:MAX_ROWS]]

    @property
    def more(self) -> str:
        left_out = len(self.rows) - MAX_ROWS
        return f"... and {left_out} more" if left_out > 0 else ""

    def is_numeric(self, column: int) -> bool:
        """Numbers are set flush right, and with them what stands in their column."""
        return any(not isinstance(cells[column], str) for _, cells in self.rows)

    def to_frame(self) -> Any:
        """A pandas DataFrame with the rows' names as index."""
        names = [name for name, _ in self.rows]
        cells = [cells for _, cells in self.rows]
        return require_pandas().DataFrame(cells, index=names, columns=list(self.columns))


def require_pandas() -> Any:
    """pandas, which is optional, or a sentence on how to get it."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("to_frame needs pandas: pip install 'jalax[pandas]'.") from error
    return pandas


def frame_of_rows(rows: Sequence[Any]) -> Any:
    """A DataFrame of dataclasses that have a name."""
    return require_pandas().DataFrame([dataclasses.asdict(row) for row in rows]).set_index("name")


class Summary(str):
    """Text that a notebook shows as HTML, and rich as tables.

    It is a string: print it, search it, compare it. `Summary.of` builds one.
    """

    heading: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    frame: Table | None = None

    @classmethod
    def of(
        cls,
        heading: Sequence[str],
        tables: Sequence[Table],
        notes: Sequence[str] = (),
        *,
        frame: Table | None = None,
    ) -> Summary:
        """Lines of text, tables, and sentences below them.

        Args:
            heading: lines above the tables.
            tables: from top to bottom, with one common width of names.
            notes: sentences below the tables.
            frame: what `to_frame` gives; by default the first table.

        >>> from jalax._export.tables import Summary, Table
        >>> fixed = Table("Fixed effects", ("estimate", "std. error"), [("slope", (1.5, 0.25))])
        >>> fit = Table("", ("",), [("log evidence", ("-73.3 +- 0.02",))])
        >>> Summary.of(["A fit"], [fixed, fit], ["All is well."])
        A fit
        Fixed effects
                        estimate  std. error
          slope              1.5        0.25
          log evidence  -73.3 +- 0.02
        All is well.
        """
        width = max((len(name) for table in tables for name, _ in table.shown), default=0)
        lines = [*heading]
        for table in tables:
            lines += text_lines(table, width)
        out = cls("\n".join([*lines, *notes]))
        out.heading, out.tables, out.notes = tuple(heading), tuple(tables), tuple(notes)
        out.frame = frame if frame is not None or not tables else tables[0]
        return out

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        parts = [f"<div>{escape(line)}</div>" for line in self.heading]
        parts += [html_table(table) for table in self.tables]
        parts += [f"<div>{escape(note)}</div>" for note in self.notes]
        return '<div class="jalax-summary">' + "\n".join(parts) + "</div>"

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.text import Text  # a name such as "[red]" is no markup

        lines = [Text(line) for line in self.heading]
        notes = [Text(note) for note in self.notes]
        return Group(*lines, *(rich_table(table) for table in self.tables), *notes)

    def to_frame(self) -> Any:
        """A pandas DataFrame of the numbers, in full precision."""
        if self.frame is None:
            raise ValueError("this summary holds no table.")
        return self.frame.to_frame()


def as_text(cell: Cell, how: str = FIVE_DIGITS) -> str:
    if isinstance(cell, str):
        return cell
    if math.isnan(cell):
        return "-"
    return p_text(float(cell)) if how == "p" else format(float(cell), how)


def p_text(p: float) -> str:
    """A p value as R prints it."""
    return "< 2.2e-16" if p < 2.2e-16 else format(p, ".4g" if p >= 1e-4 else ".3e")


def decimals(error: float) -> str:
    """The format of a number with this error: its last digit is the first of the error's."""
    places = math.ceil(-math.log10(error)) if 0 < error < 1 else 1 if error else 4
    return f".{min(places, 4)}f"


def text_lines(table: Table, name_width: int) -> list[str]:
    """The table with its columns aligned, names padded to a width common to several tables."""
    rows = table.shown
    heads = any(table.columns)
    body = [("", table.columns), *rows] if heads else rows
    widths = [max(len(cells[i]) for _, cells in body) for i in range(len(table.columns))] * (
        len(body) > 0
    )
    lines = [table.title] if table.title else []
    for name, cells in body:
        parts = [
            cell.rjust(width) if table.is_numeric(i) else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        lines.append("  ".join(["", name.ljust(name_width), *parts]).rstrip())
    return lines + ([f"  {table.more}"] if table.more else [])


def html_table(table: Table) -> str:
    """Every name and cell is escaped; the box around it scrolls, not the page."""

    def cells_of(cells: tuple[str, ...], tag: str) -> str:
        out = ""
        for i, cell in enumerate(cells):
            side = "right" if table.is_numeric(i) else "left"
            out += f'<{tag} style="text-align:{side}">{escape(cell)}</{tag}>'
        return out

    title = f"<caption>{escape(table.title)}</caption>" if table.title else ""
    head = ""
    if any(table.columns):
        head = f"<thead><tr><th></th>{cells_of(table.columns, 'th')}</tr></thead>"
    body = "".join(
        f'<tr><th scope="row" style="text-align:left">{escape(name)}</th>'
        f"{cells_of(cells, 'td')}</tr>"
        for name, cells in table.shown
    )
    more = f"<div>{table.more}</div>" if table.more else ""
    box = '<div class="jalax-table" style="overflow-x:auto">'
    return f"{box}<table>{title}{head}<tbody>{body}</tbody></table>{more}</div>"


def rich_table(table: Table) -> Any:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    out = RichTable(
        title=Text(table.title) if table.title else None,
        title_justify="left",
        caption=Text(table.more) if table.more else None,
        show_header=any(table.columns),
        box=box.SIMPLE_HEAD,
    )
    out.add_column("")
    for i, column in enumerate(table.columns):
        out.add_column(Text(column), justify="right" if table.is_numeric(i) else "left")
    for name, cells in table.shown:
        out.add_row(Text(name), *(Text(cell) for cell in cells))
    return out
