"""What every store of versions promises, asked of each."""

import asyncio

import pytest

from mesh.config.files import FileText
from mesh.config.kept_versions import Versions
from mesh.core.errors import ConfigError
from tests.worlds.stores import DATABASES, STORES, Stores, fixture_of

SOURCE = "name: a\nprompt: |\n  größer, 𝄞, '; drop table version; -- %s {schema}\n"
FILES = {"tools": FileText("b.py", "x = '\\u0000' # ß\n"), "skills/a": FileText("a.md", "")}
stores = fixture_of(*STORES)
# Not files: what writes them at the same time are processes, each of which has a draft of its own.
written_at_once = fixture_of("memory", *DATABASES)


@pytest.fixture
def versions(stores: Stores) -> Versions:
    return stores.one.versions


async def test_a_version_is_found_as_it_was_kept_with_its_files(versions: Versions) -> None:
    await versions.keep("d1", SOURCE, FILES)
    await versions.keep("d2", "name: b\n", {})
    found = await versions.kept("d1")
    assert (found.source, found.origin, dict(found.files)) == (SOURCE, "d1.yaml", FILES)
    other = await versions.kept("d2")
    assert (other.source, other.origin, dict(other.files)) == ("name: b\n", "d2.yaml", {})


async def test_a_version_that_is_kept_again_is_there_once_more(versions: Versions) -> None:
    for _ in range(3):
        await versions.keep("d1", SOURCE, FILES)
    assert dict((await versions.kept("d1")).files) == FILES


async def test_a_version_that_was_never_kept_is_an_error_that_names_it(versions: Versions) -> None:
    await versions.keep("d1", SOURCE, FILES)
    with pytest.raises(ConfigError, match="version d2 of agent agent is not known"):
        await versions.kept("d2")


async def test_another_process_finds_what_was_kept(stores: Stores) -> None:
    one, two = stores.one.versions, stores.another().versions
    await one.keep("d1", SOURCE, FILES)
    assert (await two.kept("d1")).source == SOURCE
    await two.keep("d2", SOURCE, {})
    assert dict((await one.kept("d2")).files) == {}


async def test_processes_that_keep_the_same_version_at_once_do_not_disturb_each_other(
    written_at_once: Stores,
) -> None:
    stores = written_at_once
    all_versions = [stores.one.versions, *(stores.another().versions for _ in range(3))]
    await asyncio.gather(*(versions.keep("d1", SOURCE, FILES) for versions in all_versions for _ in range(3)))
    found = await asyncio.gather(*(versions.kept("d1") for versions in all_versions))
    assert [(each.source, dict(each.files)) for each in found] == [(SOURCE, FILES)] * 4


async def test_a_long_text_is_kept_whole(versions: Versions) -> None:
    files = {"a": FileText("a.py", "ß" * 1_000_000)}
    await versions.keep("d1", SOURCE * 10_000, files)
    found = await versions.kept("d1")
    assert (found.source, dict(found.files)) == (SOURCE * 10_000, files)
