"""What an audit of programs of `tests/codemod/programs` must find, worked out by hand.

Each entry is reasoned from the program's text, for its own sizes on 8 devices, never copied from a
run.

``given`` are the arguments that lie equal on all devices, though most of them are stacked: the
question is what the function makes of them. ``replicated`` and ``varying`` are its outputs, by the
path of a subtree in what it returns (`""` is all of it); every leaf is below exactly one of them.

``sent`` says what is communicated in one call: by kind, bytes and times. The bytes are the payload
of a device (what is reduced, sent, or held after a gather: `Collective.payload`), summed over all
collectives of that kind that run that often: whether XLA makes one of several is its business.
``times`` is None in a loop whose length is not known. What is not listed must not be there.

Rules used: `psum` of a Python number is a number and sends nothing; `pmean` sends what `psum` does;
the transpose of `psum` is a `psum`, of `all_to_all` an `all_to_all`; nothing is sent backwards for
what is not differentiated. A float32 or int32 has 4 bytes.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Sent:
    """Collectives of one kind that run equally often."""

    kind: str
    bytes: int
    times: int | None = 1


@dataclasses.dataclass(frozen=True)
class Expected:
    """What is expected of one mapped function."""

    given: tuple[str, ...] = ()
    replicated: tuple[str, ...] = ()
    varying: tuple[str, ...] = ()
    sent: tuple[Sent, ...] = ()


ALL_REDUCE, ALL_GATHER = "all-reduce", "all-gather"
PERMUTE, ALL_TO_ALL, REDUCE_SCATTER = "collective-permute", "all-to-all", "reduce-scatter"

# By program, then by the name of the function that is mapped; by that of the result, where what is
# mapped is a lambda or a partial.
EXPECTED: dict[str, dict[str, Expected]] = {
    "data_parallel_mlp": {
        # Layers 3 -> 16 -> 1: 48 + 16 + 16 + 1 = 81 numbers, and the loss.
        "update": Expected(
            given=("params",),
            replicated=("[0]", "[1]"),
            sent=(Sent(ALL_REDUCE, 4 * 81 + 4),),
        ),
    },
    "class_trainer": {
        # w is 2 x 2, b has 2. The scalars are averaged once more, the norm of the averaged
        # gradients among them.
        "_update_fn": Expected(
            given=("params", "velocity"),
            replicated=("[0]", "[1]", "[2]"),
            sent=(Sent(ALL_REDUCE, 4 * 6 + 4 * 2),),
        ),
        # The number of labels is a Python number; only the hits are summed.
        "_accuracy_fn": Expected(
            given=("params",), replicated=("[0]", "[1]"), sent=(Sent(ALL_REDUCE, 4),)
        ),
    },
    "ema_and_evaluation": {
        # w1 is 4 x 8, w2 8 x 2. The noise differs by device, but what comes of it is averaged; the
        # key of the state is split alike on all.
        "train_step": Expected(
            given=("state",),
            replicated=("[0]", "[1]"),
            sent=(Sent(ALL_REDUCE, 4 * (32 + 16) + 4),),
        ),
        "ema_step": Expected(given=("state",), replicated=("",)),
        "eval_step": Expected(given=("params",), replicated=("",), sent=(Sent(ALL_REDUCE, 4),)),
    },
    "masked_evaluation": {
        # A batch of 32 is 4 examples a device: 4 x 5 logits and 4 of the mask, gathered from 8.
        "evaluate_batch": Expected(
            given=("params",),
            replicated=("[0]", "[1]"),
            sent=(Sent(ALL_REDUCE, 4 * 3), Sent(ALL_GATHER, 8 * 4 * (4 * 5 + 4))),
        ),
    },
    "gradient_accumulation": {
        # 5 x 8 and 8 x 3; once, behind the loop over pieces. The clip is made of what was averaged.
        "train_step": Expected(
            given=("params", "lr"),
            replicated=("[0]", "[1]", "[2]"),
            sent=(Sent(ALL_REDUCE, 4 * (40 + 24) + 4),),
        ),
    },
    "evolution_strategies": {
        # 2 x 4 returns of each device go to all; the direction has 6 numbers.
        "es_step": Expected(
            given=("theta", "key"),
            replicated=("[0]", "[1]"),
            sent=(Sent(ALL_GATHER, 8 * 4 * 8), Sent(ALL_REDUCE, 4 * 6)),
        ),
    },
    "heat_halo_exchange": {
        # In each of 25 steps one cell goes to either side, and the heat is summed.
        "simulate": Expected(
            replicated=("[1]",),
            varying=("[0]",),
            sent=(Sent(PERMUTE, 2 * 4, 25), Sent(ALL_REDUCE, 4, 25)),
        ),
    },
    "kmeans": {
        # 3 centres in 2 dimensions: sums and counts until they rest; then the inertia, once.
        # The labels are of the points of each device. The number of iterations is the same for all,
        # since what ends the loop is.
        "fit": Expected(
            given=("centres", "tolerance"),
            replicated=("[0]", "[2]", "[3]"),
            varying=("[1]",),
            sent=(Sent(ALL_REDUCE, 4 * (6 + 3), None), Sent(ALL_REDUCE, 4)),
        ),
    },
    "ring_attention": {
        # Keys and values, 4 x 6 each, go on to the next device 8 times.
        "ring_attention": Expected(varying=("",), sent=(Sent(PERMUTE, 2 * 4 * 24, 8),)),
    },
    "expert_parallel_moe": {
        # 8 experts x 3 slots x 4: there, back, and backwards what came back. What was sent there
        # depends on the tokens and on whole numbers only, so nothing of it is differentiated.
        # Summed: the load of 8 experts, the router's 4 x 8, the loss.
        "train_step": Expected(
            given=("router",),
            replicated=("[0]", "[2]", "[3]"),
            varying=("[1]",),
            sent=(
                Sent(ALL_TO_ALL, 3 * 4 * 8 * 3 * 4),
                Sent(ALL_REDUCE, 4 * 8 + 4 * 32 + 4),
            ),
        ),
    },
    "private_gradients": {
        # 4 x 6 and 6 x 3, loss and share of clipped ones. The count is a Python number; the noise
        # is of one key that all have.
        "_update": Expected(
            given=("params", "key"),
            replicated=("[0]", "[1]"),
            sent=(Sent(ALL_REDUCE, 4 * (24 + 18) + 2 * 4),),
        ),
    },
    "dropout_streams": {
        # w is 4 x 3. The loss is each device's own: nobody averages it.
        "step": Expected(
            given=("state",),
            replicated=("[0]",),
            varying=("[1]",),
            sent=(Sent(ALL_REDUCE, 4 * 12),),
        ),
    },
    "cross_replica_batch_norm": {
        # Two means of 6 there and their gradients back; 18 + 6 + 6 + 6 parameters; the loss.
        "global_step": Expected(
            given=("params", "stats"),
            replicated=("[0]", "[1]", "[2]"),
            sent=(Sent(ALL_REDUCE, 4 * (12 + 12 + 36 + 1)),),
        ),
        # Without the means: the statistics are of each device's own batch from then on.
        "local_step": Expected(
            given=("params", "stats"),
            replicated=("[0]", "[2]"),
            varying=("[1]",),
            sent=(Sent(ALL_REDUCE, 4 * (36 + 1)),),
        ),
        "sync_stats": Expected(replicated=("",), sent=(Sent(ALL_REDUCE, 4 * 12),)),
        "evaluate": Expected(given=("params", "stats"), varying=("",)),
    },
    "tensor_parallel": {
        # 10 x 6 activations: summed forwards in both blocks, backwards only into the first, whose
        # own input is data. Each device has its part of up and down; the bias gets the same
        # gradient everywhere.
        "train_step": Expected(
            given=("params['bias']", "x", "y"),
            replicated=("[0]['bias']", "[1]"),
            varying=("[0]['up']", "[0]['down']"),
            sent=(Sent(ALL_REDUCE, 3 * 4 * 60),),
        ),
    },
    "deep_ensemble": {
        # Members never speak.
        "init": Expected(varying=("",)),
        "fit": Expected(varying=("",)),
    },
    "epoch_on_device": {
        # w has 3, b one, and the loss: in each of 12 / 4 steps. The keys are each device's own.
        "epoch": Expected(
            given=("state[<flat index 0>]", "state[<flat index 1>]"),
            replicated=("[0][<flat index 0>]", "[0][<flat index 1>]", "[1]"),
            varying=("[0][<flat index 2>]",),
            sent=(Sent(ALL_REDUCE, 4 * (3 + 1 + 1), 3),),
        ),
    },
    "conjugate_gradient": {
        # 3 x 5 and 5 x 2 with the loss, then a product of their size in each of 4 iterations.
        "natural_step": Expected(
            given=("params",),
            replicated=("",),
            sent=(Sent(ALL_REDUCE, 4 * (25 + 1)), Sent(ALL_REDUCE, 4 * 25, 4)),
        ),
    },
    "grouped_statistics": {
        # In pairs: two means of 2 features, and the numbers of both members.
        "group_norm_step": Expected(
            varying=("",), sent=(Sent(ALL_REDUCE, 2 * 4 * 2), Sent(ALL_GATHER, 2 * 4))
        ),
        # 5 x 2 three times. A sum of sums in groups is the same everywhere; groups are not followed
        # so far, and what is called varying may be caution.
        "two_level_sum": Expected(
            replicated=("[1]",), varying=("[0]",), sent=(Sent(ALL_REDUCE, 3 * 4 * 10),)
        ),
    },
    "feature_statistics": {
        # The weight, 3 means, 3 x 3 covariances, the lowest and the highest score.
        "moments": Expected(
            given=("options",),
            replicated=("[0]", "[2]"),
            varying=("[1]",),
            sent=(Sent(ALL_REDUCE, 4 * (1 + 3 + 9 + 1 + 1)),),
        ),
        "histogram": Expected(
            given=("edges",), replicated=("[0]",), varying=("[1]",), sent=(Sent(ALL_REDUCE, 4 * 4),)
        ),
    },
    "federated_averaging": {
        # The weight of the chosen, and what 3 + 1 parameters change by.
        "run_round": Expected(
            given=("params",),
            replicated=("[0]",),
            varying=("[1]",),
            sent=(Sent(ALL_REDUCE, 4 + 4 * 4),),
        ),
    },
    "replicated_flags": {
        # 3 gradients, the flag, the loss; scale and count follow from the flag of all.
        "train_step": Expected(
            given=("state",), replicated=("",), sent=(Sent(ALL_REDUCE, 4 * (3 + 1 + 1)),)
        ),
        # The loss comes in averaged, and the choice between the branches is that of all.
        "should_stop": Expected(
            given=("x", "threshold"), replicated=("",), sent=(Sent(ALL_REDUCE, 4),)
        ),
    },
    "actors_and_learners": {
        "act": Expected(given=("weights", "state"), varying=("",)),
        "learn": Expected(
            given=("weights", "baseline"), replicated=("",), sent=(Sent(ALL_REDUCE, 4 * 9 + 4),)
        ),
    },
    "adversarial_training": {
        # 2 -> 8 -> 1 has 33 numbers, 2 -> 8 -> 2 has 42; each with its loss.
        "d_step": Expected(
            given=("disc", "gen"), replicated=("",), sent=(Sent(ALL_REDUCE, 4 * (33 + 1)),)
        ),
        "g_step": Expected(
            given=("disc", "gen"), replicated=("",), sent=(Sent(ALL_REDUCE, 4 * (42 + 1)),)
        ),
    },
    "checkpointing": {
        # w is 3 x 3, the target has 3. Nobody averages the loss.
        "step_fn": Expected(
            given=("state",),
            replicated=("[0]",),
            varying=("[1]",),
            sent=(Sent(ALL_REDUCE, 4 * 12),),
        ),
    },
    "hyperparameter_sweep": {
        "train": Expected(given=("x", "y"), varying=("",)),
    },
    "distributed_fft": {
        # 2 rows of 16 complex numbers of 8 bytes, there and back.
        "fft2": Expected(varying=("",), sent=(Sent(ALL_TO_ALL, 2 * 8 * 32),)),
        "low_pass": Expected(replicated=("[1]",), varying=("[0]",), sent=(Sent(ALL_REDUCE, 4),)),
    },
    "sharded_matmul": {
        # The vector has 16 numbers, 2 a device; it starts with equal parts.
        "power_by_rows": Expected(
            given=("v",),
            replicated=("[1]",),
            varying=("[0]",),
            sent=(Sent(ALL_GATHER, 4 * 16), Sent(ALL_REDUCE, 4)),
        ),
        "power_by_columns": Expected(
            given=("v",),
            replicated=("[1]",),
            varying=("[0]",),
            sent=(Sent(REDUCE_SCATTER, 4 * 16), Sent(ALL_REDUCE, 4)),
        ),
        "column_blocks": Expected(
            given=("a",), replicated=("[1]",), varying=("[0]",), sent=(Sent(ALL_REDUCE, 4),)
        ),
    },
    "parallel_tempering": {
        # 4 walkers go to either neighbour in each of 60 rounds. The temperatures never change, so
        # that XLA sends them once, before the loop.
        "run": Expected(
            given=("x", "key"),
            varying=("",),
            sent=(Sent(PERMUTE, 2 * 4 * 4, 60), Sent(PERMUTE, 2 * 4)),
        ),
    },
    "option_pricing": {
        # The sum and the sum of squares; the number of paths is a Python number.
        "price, error": Expected(
            given=("market",), replicated=("",), sent=(Sent(ALL_REDUCE, 2 * 4),)
        ),
        "local": Expected(given=("market",), replicated=("",), sent=(Sent(ALL_REDUCE, 5 * 4),)),
    },
    "diffusion_sampling": {
        # 10 x 16, 16 and 16 x 2, and the loss. The noise is each device's own, what comes of it
        # is averaged.
        "train_step": Expected(
            given=("params",), replicated=("",), sent=(Sent(ALL_REDUCE, 4 * (160 + 16 + 32 + 1)),)
        ),
        "sample_loop": Expected(given=("params",), varying=("",)),
    },
    "hmc_chains": {
        "sample": Expected(given=("step_size",), varying=("",)),
    },
    "keyword_arguments": {
        # w is 4 x 5.
        "update": Expected(
            given=("state", "learning_rate"), replicated=("",), sent=(Sent(ALL_REDUCE, 4 * 21),)
        ),
        "forward": Expected(given=("params",), varying=("",)),
    },
    "map_as_value": {
        # The count is a Python number.
        "running_mean": Expected(given=("state",), replicated=("",), sent=(Sent(ALL_REDUCE, 4),)),
        "normalise": Expected(varying=("",), sent=(Sent(ALL_REDUCE, 4),)),
    },
    "nested_pmap": {
        # 5 predictions over "model", 3 gradients over "data", the loss over both; what is behind
        # stop_gradient sends nothing backwards. The weights are those of a part of the features.
        "train_step": Expected(
            given=("w",),
            replicated=("[1]",),
            varying=("[0]",),
            sent=(Sent(ALL_REDUCE, 4 * (5 + 3 + 1)),),
        ),
    },
    "notebook_script": {
        "step": Expected(given=("params",), replicated=("",), sent=(Sent(ALL_REDUCE, 4 * 3),)),
    },
    "decorators": {
        "double": Expected(varying=("",)),
        "total": Expected(replicated=("",), sent=(Sent(ALL_REDUCE, 4 * 3),)),
        "scale": Expected(given=("by",), varying=("",), sent=(Sent(ALL_REDUCE, 4),)),
        "shift": Expected(varying=("",), sent=(Sent(PERMUTE, 4 * 3),)),
        "accumulate": Expected(
            given=("total",), replicated=("[1]",), varying=("[0]",), sent=(Sent(ALL_REDUCE, 4),)
        ),
        "negate": Expected(varying=("",)),
    },
}
