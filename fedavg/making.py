"""Carrying plans out: each is merged once, and published, or taken back when it cannot be.

A round is merged before it is closed, so a plan that is published can be carried out, by whoever
comes next too. What can still come between the two is an upload that is altered right then, or an
aggregator of another version that closed the round.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from fedavg import admission, blame, closing, publishing
from fedavg.agreement import Unmergeable
from fedavg.publishing import Trusted
from fsworker.errors import FleetError
from fsworker.protocol.fsops import Store
from fsworker.protocol.groupview import GroupEye
from fsworker.protocol.records.round import GroupReport, Plan

log = logging.getLogger(__name__)


@dataclass
class Maker:
    """Makes the models of one group.

    `alone`: this process holds the lock that says so. `trusted`: as `publishing.Trusted`. `tell` is
    told before a merge.
    """

    store: Store
    eye: GroupEye
    alone: bool
    threads: int
    trusted: Trusted
    tell: Callable[[GroupReport], None]
    _hopeless: dict[bytes, Unmergeable] = field(default_factory=dict)

    def merged(self, plan: Plan) -> str:
        """Merge what a plan names into a folder to be published. As `publishing.prepare_merge`.

        What nobody can merge is tried once.
        """
        known = self._hopeless.get(plan.to_json())
        if known is not None:
            raise copy.copy(known)
        words = f"merging {len(plan.contributors)} uploads by {plan.rule}"
        self.tell(GroupReport(plan.round, "merging", words))
        try:
            return publishing.prepare_merge(
                self.store, self.eye, plan, trusted=self.trusted, threads=self.threads
            )
        except Unmergeable as error:  # whoever tries it, and however often
            self._hopeless[plan.to_json()] = copy.copy(error)  # without what it was raised among
            raise

    def publish(self, plan: Plan, prepared: str) -> GroupReport:
        """Publish the model of a closed round, which `merged` gave."""
        model = publishing.publish_prepared(self.store, self.eye, plan, prepared)
        names = ", ".join(c.job for c in plan.contributors)
        log.info("%s: round %d merged of %s: %s", plan.group, plan.round, names, model.folder)
        return GroupReport(plan.round, "merged", f"merged {names}")

    def take_back(self, plan: Plan, error: FleetError) -> GroupReport:
        """Open a round again that cannot be merged as it was closed, which `error` says.

        Then it is closed anew without whoever stands in its way. Raises the error where that would
        not help, where it may pass, and where this process is not alone: another may be at work on
        the plan.
        """
        if admission.problem_of(self.store, error).kind == admission.UNREADABLE:
            raise error
        hopeless = isinstance(error, Unmergeable)
        if not hopeless and blame.blamed(self.store, plan, error) is None:
            raise error
        self.eye.forget_plan(plan.round)  # somebody else may have taken it back
        if self.eye.look().plan == plan:  # and nobody published it meanwhile
            if not self.alone:
                raise closing.with_advice(error, plan)
            log.warning("%s: round %d: %s", plan.group, plan.round, error)
            closing.reopen(self.store, plan.group, plan.round)
            self.eye.forget_plan(plan.round)
        words = "it cannot be merged as it was closed, so it is closed anew"
        return GroupReport(plan.round, "waiting", words)

    def forget(self) -> None:
        """Let go of what was in vain, once a round is over."""
        self._hopeless.clear()
