"""The table type and its writers."""

from rich.console import Console

from ducats.report.table import Table, make_table, to_csv, to_latex, to_markdown, to_terminal

TABLE = Table(
    ("Method", "Ar→Cl", "p"),
    (("a_b|<i>", "1.0 ± 0.1", "< 0.001"), ("published†", "–", "")),
    best=frozenset({(0, 1)}),
)


def test_markdown_escapes_text_and_marks_the_best() -> None:
    assert to_markdown(TABLE).splitlines() == [
        "| Method | Ar→Cl | p |",
        "| --- | ---: | ---: |",
        r"| a_b\|&lt;i&gt; | **1.0 ± 0.1** | < 0.001 |",
        "| published† | – |  |",
    ]


def test_latex_escapes_text_and_marks_the_best() -> None:
    lines = to_latex(TABLE).splitlines()
    assert lines[0] == r"\begin{tabular}{lrr}"
    assert r"Method & Ar$\to$Cl & p \\" in lines
    assert r"a\_b|$<$i> & \textbf{1.0 $\pm$ 0.1} & $<$ 0.001 \\" in lines
    assert r"published$^\dagger$ & -- &  \\" in lines
    assert r"50\% \textbackslash{}x \{\}" in to_latex(make_table(["a"], [[r"50% \x {}"]]))


def test_csv_keeps_unrounded_numbers() -> None:
    rows: list[list[str | float | None]] = [["a,b", 0.1 + 0.2, None]]
    assert to_csv(make_table(["name", "x", "y"], rows)) == 'name,x,y\n"a,b",0.30000000000000004,\n'


def test_terminal_aligns_numbers_to_the_right() -> None:
    console = Console(width=60)
    with console.capture() as captured:
        console.print(to_terminal(make_table(["name", "count"], [["long name", 7]]), "caption"))
    text = captured.get()
    assert "long name │     7 │" in text
    assert "caption" in text


def test_columns_of_a_group_start_after_the_row_names() -> None:
    table = Table(("Class", "before", "after", "after"), (), groups=(("duc", 2), ("random", 1)))
    assert {1, 3} <= table.group_starts
    assert 2 not in table.group_starts
