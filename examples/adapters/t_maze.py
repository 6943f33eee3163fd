"""Train agents that must remember, by reinforcement learning with sb3-contrib: python t_maze.py

In this T-maze, the first observation shows at which side of the far end the reward lies, and nothing shows it again. An
agent without memory earns 0 on average, one that remembers earns 1. LEM takes the place of the LSTM in the recurrent
PPO of sb3-contrib and reads whole batches of episodes in one call: it restarts where an episode begins (`resets`),
which the library does one step at a time. Needs `pip install sb3-contrib==2.9.2`.
"""

import sys

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from lem import LEM


class TMaze(gymnasium.Env):
    """A corridor whose end has two sides: one with a reward of 1, one of -1. Other wrong moves cost 0.1."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)  # the side at the first step; whether this is the end
    action_space = spaces.Discrete(3)  # forward, left, right

    def __init__(self, length: int = 6) -> None:
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.side, self.place, self.steps = int(self.np_random.integers(2)), 0, 0
        return np.array([2 * self.side - 1, 0], np.float32), {}

    def step(self, action):
        at_end, forward = self.place == self.length, action == 0
        self.steps += 1
        reward = 0.0 if forward else -0.1
        if at_end:
            reward = -0.1 if forward else 1.0 if action == 1 + self.side else -1.0
        self.place += int(forward and not at_end)
        seen = np.array([0, self.place == self.length], np.float32)
        return seen, reward, bool(at_end and not forward), self.steps >= 3 * self.length, {}


class LEMPolicy(RecurrentActorCriticPolicy):
    """The policy of sb3-contrib with LEM in place of its two LSTMs."""

    def __init__(self, observations, actions, lr_schedule, lstm_hidden_size=256, **options):
        super().__init__(observations, actions, lr_schedule, lstm_hidden_size=lstm_hidden_size, **options)
        self.lstm_actor = LEM(self.features_dim, lstm_hidden_size)
        self.lstm_critic = LEM(self.features_dim, lstm_hidden_size)
        self.optimizer = self.optimizer_class(self.parameters(), lr_schedule(1), **self.optimizer_kwargs)

    @staticmethod
    def _process_sequence(features, lstm_states, episode_starts, lstm):
        rows = lstm_states[0].shape[1]
        sequence = features.reshape(rows, -1, lstm.input_size).swapaxes(0, 1)
        resets = episode_starts.reshape(rows, -1).swapaxes(0, 1) > 0
        outputs, state = lstm(sequence, lstm_states, resets=resets)
        return outputs.transpose(0, 1).flatten(0, 1), state


def agent(name: str, seed: int):
    maze = make_vec_env(TMaze, 8, seed=seed)
    common = {"n_steps": 128, "batch_size": 256, "n_epochs": 5, "learning_rate": 2e-3, "ent_coef": 0.02}
    if name == "feed-forward":
        return PPO("MlpPolicy", maze, **common, seed=seed, device="cpu")
    policy = {"LSTM": "MlpLstmPolicy", "LEM": LEMPolicy}[name]
    return RecurrentPPO(policy, maze, **common, seed=seed, device="cpu", policy_kwargs={"lstm_hidden_size": 32})


def main(steps: int = 40_000, seeds: int = 3, figure: str = "") -> dict[str, list[float]]:
    torch.set_num_threads(1)
    found, curves = {}, {}
    for name in ("feed-forward", "LSTM", "LEM"):
        found[name], curves[name] = [], []
        for seed in range(seeds):
            learner, curve = agent(name, seed), []
            while learner.num_timesteps < steps:
                learner.learn(1024, reset_num_timesteps=False)
                recent = np.mean([episode["r"] for episode in learner.ep_info_buffer])
                curve.append((learner.num_timesteps, recent))
            score, _ = evaluate_policy(learner, make_vec_env(TMaze, 8, seed=1000 + seed), 400, warn=False)
            found[name].append(float(score))
            curves[name].append(curve)
        shown = ", ".join(f"{score:.2f}" for score in found[name])
        print(f"{name:12}: mean return {np.mean(found[name]):5.2f} over 400 episodes after training (seeds: {shown})")
    if figure:
        draw(figure, curves)
    return found


def draw(path: str, curves: dict[str, list[list[tuple[int, float]]]]) -> None:
    from matplotlib import pyplot as plt

    chart, axes = plt.subplots(figsize=(6.0, 2.9), layout="constrained")
    for (name, runs), colour in zip(curves.items(), ("0.6", "#d62728", "#1f77b4")):
        for seed, curve in enumerate(runs):
            axes.plot(*zip(*curve), color=colour, lw=1, label=name if seed == 0 else None)
    axes.axhline(1.0, color="0.8", lw=0.7)
    axes.set(xlabel="steps in the maze", ylabel="return, last 100 episodes", ylim=(-1.0, 1.05))
    axes.legend(frameon=False, fontsize=8)
    chart.savefig(path, dpi=130)
    plt.close(chart)


if __name__ == "__main__":
    main(figure=sys.argv[1] if len(sys.argv) > 1 else "")
