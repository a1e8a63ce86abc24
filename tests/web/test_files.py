"""The files of the page: what is in them, and where they come from."""

import hashlib
import re
from pathlib import Path

from mesh.core.approvals import APPROVAL_KINDS

STATIC = Path(__file__).parents[2] / "mesh/web/static"
ROW = re.compile(r"^\| (\S+\.js) \| .* \| ([0-9a-f]{64}) \|$", re.MULTILINE)


def test_no_file_of_the_page_makes_markup_of_text() -> None:
    for source in STATIC.glob("js/**/*.js"):
        text = source.read_text()
        for forbidden in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "Function(",
        ):
            assert forbidden not in text, f"{source.name}: {forbidden}"


def test_every_file_of_the_page_is_checked_and_knows_no_approval_kind_by_name() -> None:
    for source in STATIC.glob("js/**/*.js"):
        text = source.read_text()
        assert text.startswith("// @ts-check\n"), source.name
        assert not re.search(rf'kind\W+[!=]==?\s*"(?:{"|".join(APPROVAL_KINDS)})"', text), source.name


def test_the_page_has_no_inline_script_or_style_and_asks_no_other_origin() -> None:
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|style=|https?://", page)


def test_the_libraries_of_the_page_are_the_files_that_their_list_names() -> None:
    vendor = STATIC / "vendor"
    listed = dict(ROW.findall((vendor / "README.md").read_text()))
    found = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in vendor.glob("*.js")}
    assert found == listed
