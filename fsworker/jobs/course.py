"""The steps of a job, performed: train, upload, wait for the others.

What to do is decided in `episodes`; here each step meets the machine and comes back as an event.
"""

from __future__ import annotations

import os
import time

from fsworker import outcomes
from fsworker.errors import FleetError, StorageError
from fsworker.jobs import environment, handing, retention, summary, templates
from fsworker.jobs.attempt import AttemptFolder, words
from fsworker.jobs.control import Interrupted
from fsworker.jobs.episodes import Await, Event, Step, Train, Upload
from fsworker.jobs.handing import Weights
from fsworker.jobs.looped import Loop
from fsworker.jobs.pickled import Unreadable
from fsworker.jobs.process import Ended
from fsworker.jobs.summary import Found, Summary
from fsworker.jobs.templates import Turn
from fsworker.protocol import federation, fsfolders
from fsworker.protocol.artifacts import Damaged
from fsworker.protocol.records.artifact import Done

_FIRST_LOOK, _LONGEST_LOOK = 0.1, 2.0


class Course:
    """Performs the steps of one attempt at a job."""

    def __init__(self, at: AttemptFolder, chained: str | None) -> None:
        self._at, self._job, self._store = at, at.job, at.store
        self._chained = chained
        self._last: tuple[int, Weights] | None = None
        self._loop = Loop(at) if at.job.agent_loop else None
        self.uncounted = False
        """Whether a checkpoint did not tell its episodes."""
        self.exit_code: int | None = None

    def perform(self, step: Step) -> Event:
        """Do it. Raises Interrupted when the job was told to end."""
        self._at.control.look()
        self._at.control.check()
        try:
            match step:
                case Train():
                    return self._train(step)
                case Upload():
                    return self._upload(step.episode)
                case Await():
                    return self._await(step.episode)
        except StorageError:
            raise
        except FleetError as error:
            return Event("failed", why=str(error))
        raise AssertionError(step)

    def close(self) -> None:
        """End the process that trained all episodes, if there is one."""
        if self._loop is not None:
            self._loop.close()

    # -- training

    def _train(self, step: Train) -> Event:
        weights = self._at.insist(lambda: self._weights(step.first))
        folder = handing.attempt_turn_dir(self._job.job_id, self._at.attempt, step.first)
        self._at.insist(lambda: self._empty(folder))
        checkpoint = self._store.path(f"{folder}/{self._job.checkpoint}")
        turn = Turn(step.first, step.count, checkpoint, weights.path)
        argv = templates.command(self._job, turn)
        env = environment.of_turn(self._at.env, turn, self._at.attempt.number)
        last = step.first + step.count - 1
        which = f"episode {step.first}" if step.count == 1 else f"episodes {step.first} to {last}"
        where = f" on {self._at.note.host}: {words(argv)}" if self._loop is None else ""
        self._at.say(f"{which}{where}")
        try:
            if self._loop is not None:
                ended = self._loop.train(turn, argv, env)
            else:
                ended = self._at.run(argv, env, self._job.timeout_seconds)
        except OSError as error:
            return Event("failed", why=f"cannot run {argv[0]}: {_reason(error, self._job.cwd)}")
        self.exit_code = ended.code
        try:
            return self._judge(step, ended, folder, weights)
        except handing.Lost as error:
            self._at.control.check()
            return Event("crashed", step.first - 1, str(error))

    def _judge(self, step: Train, ended: Ended, folder: str, weights: Weights) -> Event:
        """What became of the process, by what it saved."""
        if ended.why == "gone":
            raise Interrupted("gone")
        complete = ended.why == "exit" and ended.code == 0
        finished, problem = step.first - 1, None
        # An episode that is a process counts when that ended well, or was drained and saved it.
        if complete or ended.why == "drain" or not self._job.by_episode:
            try:
                finished = self._save(step, folder, weights, complete=complete)
            except Unreadable as error:
                problem = str(error)
        if ended.why == "drain":
            raise Interrupted("drain")
        if ended.why == "cancel":
            return Event("cancelled", finished)
        if ended.why == "timeout":
            why = f"it ran longer than {self._job.timeout_seconds:g} s and was killed"
            return Event("timeout", finished, why)
        if ended.by_signal:
            number = -ended.code if ended.code < 0 else ended.code - 128
            why = f"its process was ended by {outcomes.exit_words('signal', number)}"
            return Event("crashed", finished, why)
        if not complete:
            return Event("failed", finished, f"its process ended with exit code {ended.code}")
        if finished < step.first:
            return Event("failed", finished, problem or self._nothing(folder))
        return Event("trained" if self._job.by_episode else "finished", finished)

    def _nothing(self, folder: str) -> str:
        place = self._store.path(folder)
        return (
            f"its process ended well and left no finished episode in {place}: save a checkpoint "
            "that says how many episodes it has to {checkpoint}"
        )

    def _save(self, step: Train, folder: str, weights: Weights, *, complete: bool) -> int:
        """Publish what a process saved; the last episode that is finished now."""
        inspected = handing.inspect(self._store, folder, self._job.checkpoint)
        if inspected is None:
            return step.first - 1
        found, told = inspected
        self.uncounted = told.episodes is None
        count = summary.new_episodes(weights.known, told, step.count, complete=complete)
        if not count:
            return step.first - 1
        episode = step.first - 1 + count
        self._at.control.look()  # it may have been frozen while it trained
        if self._at.control.told == "gone":
            raise Interrupted("gone")
        wanted = self._record(step, found, told, count, weights)
        done = self._at.insist(
            lambda: handing.publish(self._store, folder, found, wanted, self._at.rank)
        )
        # Written and digested a moment ago: not read anew to be verified.
        self._last = episode, handing.episode_weights(self._store, done)
        fsfolders.remove_tree(self._store, folder)
        self._at.say(f"episode {episode} is finished")
        self._prune(episode)
        return episode

    def _prune(self, episode: int) -> None:
        if self._job.keep_checkpoints is None:
            return
        try:
            gone = retention.prune(self._store, self._job, episode)
        except (OSError, FleetError) as error:
            self._at.say(f"old checkpoints stay for now: {error}")
            return
        if gone:
            self._at.say(f"checkpoints up to that of episode {gone[-1]} are removed")

    def _record(
        self, step: Train, found: Found, told: Summary, count: int, weights: Weights
    ) -> Done:
        rewards = summary.new_rewards(told, count)
        reported = [value for _, value in sorted(self._at.metrics.rewards.items())]
        if not rewards and reported:
            rewards = tuple(reported[-count:])
        total = sum(r for r in rewards if r is not None) if rewards else told.total
        return Done(
            self._job.job_id,
            self._at.attempt.number,
            self._at.attempt.incarnation,
            step.first - 1 + count,
            (),
            weights.base,
            told.samples,
            rewards,
            total,
        )

    def _weights(self, first: int) -> Weights:
        """What the process of an episode starts from."""
        group = self._job.federation_group_id
        if group is not None:
            shared = handing.global_weights(self._store, group, first)
            if shared is None and first > 1 and (newer := self._newest(group)) is not None:
                self._at.say(f"the group's model for episode {first} is gone: using its newest")
                shared = newer
            if shared is not None:
                return shared
        if first == 1:
            return handing.first_weights(self._store, self._job, self._chained)
        if self._last is not None and self._last[0] == first - 1:
            return self._last[1]
        found = handing.latest(self._store, self._job.job_id)
        if found.done is None or found.number != first - 1:
            raise Damaged(f"episode {first - 1} of job {self._job.job_id} is not there any more")
        return handing.episode_weights(self._store, found.done)

    def _newest(self, group: str) -> Weights | None:
        newest = federation.newest_global(self._store, group)
        return handing.global_weights(self._store, group, newest.episode) if newest else None

    def _empty(self, folder: str) -> None:
        fsfolders.remove_tree(self._store, folder)
        fsfolders.make_folders(self._store, folder)

    # -- the group

    def _upload(self, episode: int) -> Event:
        group = self._job.federation_group_id
        assert group is not None
        job = self._job.job_id
        if not handing.is_uploaded(self._store, group, episode, job):
            self._at.insist(lambda: handing.upload(self._store, group, episode, job))
            self._at.say(f"episode {episode} is given to group {group}")
        return Event("uploaded", episode)

    def _await(self, episode: int) -> Event:
        group = self._job.federation_group_id
        assert group is not None
        limit = self._job.sync_server_weights_timeout_seconds
        end, pause = time.monotonic() + limit, _FIRST_LOOK
        self._at.say(f"waits for the model of group {group} for episode {episode}")
        while (left := end - time.monotonic()) > 0:
            newest = self._at.insist(lambda: federation.newest_global(self._store, group))
            if newest is not None and newest.episode >= episode:
                if newest.episode > episode:
                    self._at.say(f"the group is at episode {newest.episode}: going on from there")
                return Event("arrived", newest.episode)
            self._at.control.rest(min(pause, left))
            pause = min(pause * 1.5, _LONGEST_LOOK)
        refusal = federation.read_refusal(self._store, group, episode - 1, self._job.job_id)
        more = f"; its own upload was refused: {refusal.reason}" if refusal else ""
        why = f"the model of group {group} for episode {episode} did not come in {limit:g} s{more}"
        return Event("late", why=why)


def _reason(error: OSError, cwd: str | None) -> str:
    text = error.strerror or str(error)
    if cwd and not os.path.isdir(cwd):
        return f"there is no folder {cwd} on this host"
    return text
