"""Print the tables of docs/cards.md, or write them into it.

python tools/cards/tables.py [--write]"""

import argparse
import re
from pathlib import Path

from lingbot_world.doctor.tables import measured_table, parts_table, worked_out_table

PAGE = Path(__file__).parents[2] / "docs" / "cards.md"


def filled(text: str) -> str:
    """Return the page with the tables as they are now."""
    tables = {"worked out": worked_out_table(), "parts": parts_table(), "measured": measured_table()}
    for name, table in tables.items():
        begin, end = re.escape(f"<!-- {name} -->"), re.escape("<!-- end -->")
        text = re.sub(f"({begin}).*?({end})", lambda m, t=table: f"{m[1]}\n{t}\n{m[2]}", text, count=1, flags=re.S)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write them into docs/cards.md")
    if parser.parse_args().write:
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    print(worked_out_table(), parts_table(), measured_table(), sep="\n\n")


if __name__ == "__main__":
    main()
