"""Which branches a decision lets go on, and what it costs to find out."""

from mesh.core.places import Place, StepKey
from mesh.tree.branches import Branch, Branches
from mesh.tree.node import PAUSED, PassEnd
from mesh.tree.steps import Steps
from tests.counted_work import counted_opcodes
from tests.tree.test_children import Alone, steps


async def _paused(number: int, runs: list[int]) -> Branches[int, str]:
    """Branches that have all paused."""

    def branch(index: int) -> Branch:
        async def run() -> PassEnd:
            runs.append(index)
            return PAUSED

        return Branch(run, Place(f"0.1#{index}"))

    branches = Branches[int, str](Steps(steps().turn, Alone()))
    for index in range(number):
        branches.add(index, branch(index))
    await branches.run()
    runs.clear()
    return branches


async def test_a_decision_lets_the_branch_go_on_in_which_it_was_asked_and_no_other() -> None:
    runs: list[int] = []
    branches = await _paused(30, runs)
    branches._go_on(
        [StepKey("0.1#2.0.search@1-0/tool/0.0"), StepKey("0.1#20/tool/0.0"), StepKey("0.2/tool/0.0")]
    )
    await branches.run()
    assert sorted(runs) == [2, 20]


async def test_a_limit_that_is_raised_around_the_branches_lets_all_of_them_go_on() -> None:
    runs: list[int] = []
    branches = await _paused(30, runs)
    branches._go_on([StepKey("0/limit/max_llm_calls")])
    await branches.run()
    assert sorted(runs) == [*range(30)]


async def test_a_decision_costs_the_same_however_many_branches_have_paused() -> None:
    costs = []
    for number in (10, 1_000):
        branches = await _paused(number, [])
        with counted_opcodes() as work:
            branches._go_on([StepKey("0.1#7/tool/0.0")])
        await branches.run()
        costs.append(work.amount)
    assert costs[0] == costs[1]
