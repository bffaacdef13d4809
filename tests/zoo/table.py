"""The zoo as a table: code that people bring along, and brim's treatment of it.

A source named `loop_….py` is a loop of one's own, any other a training file; both are scripts as
users write them. An exact case ends with the same weights alone, on two workers, and on three of
which one is killed and one joins. A refused case ends with the words of its row, alone and in the
same run of three.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

KILL_AND_JOIN = "kill rank 1 at step 3; add 1 at step 5"
MANY_LIVES = ("term rank 0 at step 3", "kill rank 1 at step 5; add 1 at step 6")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row.

    Args:
        name: of the test.
        source: a file in `cases/`.
        arguments: `NAME=VALUE` of `--set` for a training file, words of the command line for a
            loop.
        like: the public example in whose style it is, or its oddity.
        words: of the message that refuses it; empty where it is exact.
        harmless_alone: the refused part concerns several workers only, or a run.
        unsound: its losses are not all numbers, and brim warns of that.
        steps: that its weights have seen.
        epochs: whose samples count once each; None where the data has no end that is known.
        faults: of its three workers; each text is one life of the run, resumed by the
            next.
        workers: in each life of that run.
        world_sizes: that the last life must have seen.
        warned: words of a warning that it gets, however it ends.
        options: of `brim train`, by the names of `JobSpec`.
        needs: a package without which it is skipped.
        is_long: a quicker test shows it, too.
    """

    name: str
    source: str
    arguments: tuple[str, ...] = ()
    like: str
    words: str = ""
    harmless_alone: bool = False
    unsound: bool = False
    steps: int = 10
    epochs: int | None = 2
    faults: tuple[str, ...] = (KILL_AND_JOIN,)
    workers: tuple[int, ...] = (3,)
    world_sizes: frozenset[int] = frozenset({3, 4})
    warned: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    needs: str = ""
    is_long: bool = False

    @property
    def is_loop(self) -> bool:
        return self.source.startswith("loop_")


def exact(name: str, source: str, *arguments: str, like: str, **fields: Any) -> Case:
    return Case(name=name, source=source, arguments=arguments, like=like, **fields)


def refused(name: str, source: str, *arguments: str, like: str, words: str, **fields: Any) -> Case:
    return Case(name=name, source=source, arguments=arguments, like=like, words=words, **fields)


def life(name: str, *faults: str, like: str, **fields: Any) -> Case:
    """The same file in another life: see `faults`."""
    return Case(name=name, source="resnet.py", like=like, faults=faults, **fields)


PUBLIC = [
    exact("mnist", "mnist.py", like="pytorch/examples: mnist"),
    exact("mnist_loop", "loop_mnist.py", like="pytorch/examples: mnist, its loop"),
    exact("step_function", "loop_step_function.py", like="mnist, its loss as a step function"),
    exact("quickstart", "loop_quickstart.py", like="the PyTorch quickstart", epochs=3, steps=15),
    exact("lstm", "word_language_model.py", like="pytorch/examples: word_language_model"),
    exact(
        "lstm_carried",
        "word_language_model.py",
        "kind=carried",
        like="its hidden state carried in a buffer",
    ),
    exact(
        "transformer",
        "word_language_model.py",
        "kind=transformer",
        like="pytorch/examples: word_language_model, Transformer, clipped",
        options={"clip_norm": 0.25},
    ),
    exact("dcgan", "loop_dcgan.py", like="pytorch/examples: dcgan"),
    exact("vae", "vae.py", like="pytorch/examples: vae, its DataLoader"),
    exact("super_resolution", "super_resolution.py", like="pytorch/examples: super_resolution"),
    exact("actor_critic", "loop_actor_critic.py", like="pytorch/examples: actor_critic"),
    exact("siamese", "siamese.py", like="pytorch/examples: siamese_network"),
    exact(
        "time_sequence",
        "time_sequence.py",
        "optimizer=adam",
        like="pytorch/examples: time_sequence_prediction, by Adam",
        steps=8,
    ),
    refused(
        "time_sequence_lbfgs",
        "time_sequence.py",
        like="pytorch/examples: time_sequence_prediction",
        words="LBFGS, which computes the loss again within a step",
    ),
    exact("resnet", "resnet.py", like="torchvision: BasicBlock on CIFAR"),
    exact("nanogpt", "loop_nanogpt.py", like="karpathy/nanoGPT: get_lr by step, tied weights"),
    exact("nanogpt_bf16", "loop_nanogpt.py", "bf16", like="karpathy/nanoGPT under bf16 autocast"),
    exact("dlrm", "recommender.py", like="facebookresearch/dlrm"),
    exact("ncf", "recommender.py", "kind=ncf", like="neural collaborative filtering"),
    exact("deepfm", "recommender.py", "kind=deepfm", like="DeepFM"),
    exact(
        "large_dlrm",
        "recommender.py",
        "kind=large_dlrm",
        like="DLRM with tables that are trained by rows",
    ),
    exact(
        "large_ncf",
        "recommender.py",
        "kind=large_ncf",
        like="neural collaborative filtering, by rows",
    ),
    exact(
        "two_tower", "recommender.py", "kind=two_tower", like="two towers, by binary cross-entropy"
    ),
    exact(
        "large_two_tower",
        "recommender.py",
        "kind=large_two_tower",
        like="two towers by in-batch softmax, trained by rows",
    ),
    exact("unet", "unet.py", like="milesial/Pytorch-UNet", options={"clip_norm": 1.0}),
    exact("bert", "bert.py", like="BERT-like classification, warm-up per step"),
    exact("simsiam", "self_supervised.py", like="facebookresearch/simsiam"),
    refused(
        "moco",
        "self_supervised.py",
        "kind=moco",
        like="facebookresearch/moco: the encoder of keys changes in forward",
        words="changed in forward",
    ),
    exact(
        "moco_buffers",
        "self_supervised.py",
        "kind=moco_buffers",
        like="moco, the keys' encoder as buffers",
        warned="change buffer 'queue' by their number",
    ),
    exact("autoencoder", "small_nets.py", like="lightning's first example"),
    exact("gcn", "small_nets.py", "kind=gcn", like="tkipf/pygcn: a sparse adjacency"),
    refused(
        "gcn_buffer",
        "small_nets.py",
        "kind=gcn_buffer",
        like="pygcn, the sparse adjacency as a buffer",
        words="sparse",
    ),
    exact("char_rnn", "small_nets.py", "kind=char_rnn", like="karpathy/char-rnn"),
    exact("mixup", "loop_mixup.py", like="facebookresearch/mixup-cifar10, label smoothing"),
    exact("ema", "loop_ema.py", like="timm's ModelEma, by torch's AveragedModel"),
    exact("ddpm", "loop_ddpm.py", like="lucidrains/denoising-diffusion-pytorch"),
    exact(
        "distillation", "loop_distill.py", like="Hinton's distillation, a teacher outside the job"
    ),
    exact("maml", "loop_maml.py", like="learn2learn: MAML by torch.func"),
    exact("wgan_gp", "loop_wgan.py", like="caogang/wgan-gp: the generator every second step"),
    exact(
        "grad_scaler",
        "loop_scaler.py",
        like="torch's AMP recipe with a GradScaler",
        epochs=4,
        steps=20,
    ),
    *(
        exact(kind, "recommender.py", f"kind={kind}", like=like, is_long=True)
        for kind, like in (
            ("dcn_v2", "DCN-V2"),
            ("final_mlp", "FinalMLP"),
            ("din", "DIN over padded histories"),
            ("large_din", "DIN with a table that is trained by rows"),
            ("ple", "PLE, its two targets averaged"),
        )
    ),
]

MODELS = [
    exact(
        "frozen_batch_norm",
        "resnet.py",
        "frozen=true",
        like="BatchNorm that the user keeps in eval mode",
    ),
    exact(
        "channels_last",
        "resnet.py",
        "channels_last=true",
        like="channels_last, clipped",
        options={"clip_norm": 0.5},
    ),
    exact("spectral_norm", "layers.py", like="a parametrization with buffers"),
    exact("weight_norm", "layers.py", "kind=weight_norm", like="a parametrization"),
    exact(
        "stochastic_depth",
        "layers.py",
        "kind=stochastic_depth",
        like="blocks left out by Python's random",
    ),
    exact("lora", "layers.py", "kind=lora", like="microsoft/LoRA"),
    exact("straight_through", "layers.py", "kind=binarised", like="a custom autograd.Function"),
    exact("observer", "layers.py", "kind=observed", like="quantisation-aware: ranges in buffers"),
    refused(
        "observer_that_grows",
        "layers.py",
        "kind=fake_quantised",
        like="torch.ao.quantization: buffers that get a new shape",
        words="buffer",
    ),
    exact("complex", "layers.py", "kind=complex", like="complex weights in a Fourier layer"),
    exact(
        "recomputed", "layers.py", "kind=checkpointed", like="torch.utils.checkpoint with dropout"
    ),
    exact(
        "experts",
        "layers.py",
        "kind=experts",
        like="experts without a gradient in some micro-batches",
    ),
    exact("hooks", "layers.py", "kind=hooked", like="gradient reversal by hooks"),
    exact(
        "compiled",
        "layers.py",
        "kind=compiled",
        like="torch.compile, without its compiler",
        is_long=True,
    ),
    exact("group_norm", "layers.py", "kind=group_norm", like="GroupNorm"),
    exact(
        "batch_norm_cumulative",
        "layers.py",
        "kind=batch_norm_cumulative",
        like="BatchNorm(momentum=None)",
    ),
    exact("sync_batch_norm", "layers.py", "kind=sync_batch_norm", like="convert_sync_batchnorm"),
    refused("lazy", "layers.py", "kind=lazy", like="LazyLinear", words="uninitialized parameter"),
    exact("masked", "layers.py", "kind=masked", like="a buffer of minus infinities"),
    exact(
        "odd_buffers",
        "layers.py",
        "kind=odd_buffers",
        like="buffers of all types, expanded, empty, None",
    ),
    exact(
        "odd_parameters",
        "layers.py",
        "kind=odd_parameters",
        like="transposed, empty, unused parameters",
    ),
    exact("rotary", "layers.py", "kind=rotary", like="a buffer that is made by the first forward"),
    exact("monte_carlo", "layers.py", "kind=monte_carlo", like="dropout in evaluation"),
    exact("float64", "layers.py", "kind=float64", like="double precision"),
    exact("bfloat16", "layers.py", "kind=bfloat16", like="bfloat16 weights"),
    exact("float16", "layers.py", "kind=float16", like="float16 weights"),
    exact("autocast", "layers.py", "kind=autocast", like="bf16 autocast in a training file"),
    exact("buffer_in_place", "buffers.py", like="a running mean, written in place"),
    exact("buffer_assigned", "buffers.py", "kind=assigned", like="a buffer that is assigned again"),
    exact(
        "buffer_assigned_not_persistent",
        "buffers.py",
        "kind=not_persistent_assigned",
        like="a buffer outside the state_dict that is assigned again",
    ),
    exact(
        "buffer_changed_in_evaluation",
        "buffers.py",
        "kind=changed_in_evaluation",
        like="buffers that evaluation changes",
    ),
    exact("extra_state", "buffers.py", "kind=extra_state", like="get_extra_state"),
    refused(
        "counter",
        "buffers.py",
        "kind=counter",
        like="a counter in a Python attribute",
        words="'count'",
    ),
    exact(
        "cached",
        "buffers.py",
        "kind=cached",
        like="an attribute that forward writes and never reads",
    ),
    refused(
        "carried",
        "buffers.py",
        "kind=carried",
        like="a hidden state carried in an attribute",
        words="for the same micro-batch and seed",
    ),
    refused(
        "list",
        "buffers.py",
        "kind=list",
        like="a list in a Python attribute",
        words="'recent'",
    ),
    exact(
        "own_generator",
        "buffers.py",
        "kind=own_generator",
        like="a torch.Generator of the model's own",
    ),
]

GROWN = [
    *(
        exact(
            f"grown_{kind}",
            "loop_grown.py",
            kind,
            like=like,
            faults=MANY_LIVES,
            workers=(1, 3),
            is_long=kind not in ("averaged", "cache"),
        )
        for kind, like in (
            (
                "cache",
                "torchvision, transformers, Keras: an attribute that goes from None to a value",
            ),
            ("averaged", "an AveragedModel within the model, updated after each step"),
            ("quantized", "vector-quantize-pytorch: a buffer that requires a gradient"),
            ("spiking", "snntorch: a buffer that grows from nothing"),
            ("initialised_before", "gpytorch: SVGP, through which a batch was run before"),
        )
    ),
    *(
        refused(
            f"grown_{kind}",
            "loop_grown.py",
            kind,
            like=like,
            words=words,
            is_long=kind != "learned_cache",
            **fields,
        )
        for kind, like, words, fields in (
            (
                "learned_cache",
                "an attribute that is set once, by the samples that come first",
                "the workers do not agree",
                {"harmless_alone": True},
            ),
            (
                "initialised",
                "gpytorch: SVGP, which the first forward pass initialises",
                "a value that the first forward pass sets",
                {},
            ),
            ("averaged_in_forward", "an average that forward updates", "changed in forward", {}),
            (
                "metric",
                "a torchmetrics object among the modules",
                "MulticlassAccuracy, which adds up the batches of a worker",
                {"needs": "torchmetrics"},
            ),
        )
    ),
    exact("jagged", "loop_jagged.py", "jagged", like="nested tensors of the jagged layout"),
]

OPTIMIZERS = [
    *(
        exact(
            name,
            "optimizers.py",
            f"optimizer={name}",
            like=f"torch.optim: {name.replace('_', ', ')}",
        )
        for name in (
            "adadelta",
            "adafactor",
            "adam_amsgrad_foreach",
            "adamw_fused",
            "adamax",
            "asgd",
            "nadam",
            "radam",
            "rmsprop_centered",
            "rprop",
            "sgd_maximize_foreach",
        )
    ),
    exact("lion", "optimizers.py", "optimizer=lion", like="an optimizer copied from a paper"),
    exact(
        "lamb",
        "optimizers.py",
        "optimizer=lamb",
        like="LAMB: a trust ratio, a Python number as state",
    ),
    exact("sgld", "optimizers.py", "optimizer=sgld", like="an optimizer that draws noise"),
    exact(
        "master_weights",
        "optimizers.py",
        "optimizer=master_weights",
        like="float32 state beside bfloat16 weights",
    ),
    *(
        exact(
            kind,
            "preconditioned.py",
            f"optimizer={kind}",
            like=like,
            faults=MANY_LIVES,
            workers=(1, 3),
        )
        for kind, like in (
            ("soap", "heavyball, pytorch-optimizer: SOAP, its eigenvectors by columns"),
            ("shampoo", "Shampoo that keeps what eigh returns"),
            ("galore", "galore-torch: a projection with gaps in memory"),
            ("kron", "PSGD's Kron: tuples of factors, and text beside them"),
        )
    ),
    *(
        exact(
            f"{kind}_alone",
            "preconditioned.py",
            f"optimizer={kind}",
            like="the same, suspended and resumed with one worker",
            faults=("term rank 0 at step 4", "term rank 0 at step 7", ""),
            workers=(1, 1, 1),
            world_sizes=frozenset({1}),
            is_long=kind != "soap",
        )
        for kind in ("soap", "shampoo", "galore", "kron")
    ),
    exact(
        "counting_optimizer",
        "optimizers.py",
        "optimizer=counting",
        like="an optimizer that counts in an attribute",
    ),
    *(
        exact(
            kind,
            "kept.py",
            f"optimizer={kind}",
            like=like,
            faults=MANY_LIVES,
            workers=(1, 3),
            is_long=kind != "projected",
        )
        for kind, like in (
            ("projected", "galore-torch: an object with tensors for each parameter"),
            ("odd_state", "heavyball, pytorch-optimizer: sets, types and text in a state"),
            ("eight_bits", "torchao: a state of tensor subclasses"),
            ("lookahead", "pytorch-optimizer: Lookahead, with a state_dict of another form"),
            ("drawing", "PSGD's Kron: a generator of the optimizer's own"),
        )
    ),
    refused(
        "keeping",
        "kept.py",
        "optimizer=keeping",
        like="a function in an optimizer's state",
        words="optimizer Keeping: got a function",
    ),
    refused(
        "prepared",
        "kept.py",
        "optimizer=prepared",
        like="accelerate, opacus: an optimizer around another, which torch's hooks do not see",
        words="Prepared, a wrapper",
        is_long=True,
    ),
    exact(
        "scheduler_by_epoch",
        "loop_jagged.py",
        like="timm: a scheduler whose step() takes the epoch, stepped in the loop",
    ),
    refused(
        "scheduler_by_epoch_joined",
        "loop_jagged.py",
        "joined",
        like="the same, given to brim.join",
        words="whose step() takes the epoch",
        is_long=True,
    ),
    exact(
        "sparse_adam",
        "optimizers.py",
        "optimizer=sparse_adam",
        like="SparseAdam over an EmbeddingBag",
    ),
    exact(
        "sparse_clipped",
        "optimizers.py",
        "optimizer=sparse_adam",
        like="SparseAdam over an EmbeddingBag, clipped",
        options={"clip_norm": 0.01},
    ),
    refused(
        "sparse_momentum",
        "optimizers.py",
        "optimizer=sparse_momentum",
        like="SGD with momentum over an EmbeddingBag with sparse=True",
        words="got sparse=True, and SGD with momentum=0.9",
    ),
    exact("onecycle", "loop_schedules.py", "onecycle", like="OneCycleLR per batch"),
    exact(
        "onecycle_unsaid",
        "loop_schedules.py",
        "onecycle_unsaid",
        like="OneCycleLR without a word on when",
    ),
    refused(
        "cosine_unsaid",
        "loop_schedules.py",
        "cosine_unsaid",
        like="a cosine over steps without a word on when",
        words="need a word on when it steps",
    ),
    exact(
        "sequential", "loop_schedules.py", "sequential", like="SequentialLR: warm-up, then a cosine"
    ),
    exact("cyclic", "loop_schedules.py", "cyclic", like="CyclicLR without a word on when"),
    exact("lambda", "loop_schedules.py", "lambda", like="LambdaLR per epoch"),
    exact("plateau", "loop_schedules.py", "plateau", like="ReduceLROnPlateau"),
    exact(
        "halved_by_hand",
        "loop_schedules.py",
        "by_hand",
        like="a learning rate halved by hand per epoch",
    ),
    refused(
        "within_a_step",
        "loop_schedules.py",
        "within_a_step",
        like="a learning rate that changes within a step",
        words="within a step",
    ),
    refused(
        "scheduler_left_over",
        "loop_schedules.py",
        "scheduler_left_over",
        like="scheduler.step() left over in the loop",
        words="within a step",
    ),
]

DATA = [
    exact("augmentation", "chance.py", like="torch, numpy and random in the dataset"),
    exact(
        "own_torch_generator",
        "chance.py",
        "kind=own_torch_generator",
        like="a torch.Generator in the dataset",
    ),
    exact(
        "own_numpy_generator",
        "chance.py",
        "kind=own_numpy_generator",
        like="a numpy Generator in the dataset",
    ),
    *(
        exact(f"data_{kind}", "loop_data.py", kind, like=like)
        for kind, like in (
            ("dicts", "samples are dicts of two keys"),
            ("three_keys", "nested samples with words in them"),
            ("triples", "samples of three, the last a weight"),
            ("list", "a plain list"),
            ("loader", "a DataLoader with two processes"),
            ("collate", "a collate_fn that pads"),
            ("weighted", "a WeightedRandomSampler"),
            ("in_order", "a DataLoader that does not shuffle"),
            ("stream", "an IterableDataset with shards, read whole"),
            ("shards", "an IterableDataset with shards, of which each worker reads its own"),
        )
    ),
    refused(
        "data_split_by_process",
        "loop_split.py",
        like="random_split, with another seed in each process",
        words="other samples",
        harmless_alone=True,
    ),
    *(
        exact(
            f"stream_file_{kind}",
            "stream_file.py",
            f"kind={kind}",
            like=like,
            faults=("term rank 0 at step 3", "kill rank 1 at step 5; add 1 at step 6"),
            workers=(1, 3),
        )
        for kind, like in (
            (
                "plain",
                "an IterableDataset of a training file, with shards, suspended within an epoch",
            ),
            ("loader", "the same in a DataLoader"),
        )
    ),
    refused(
        "data_deaf_shards",
        "loop_data.py",
        "deaf_shards",
        like="shards= for a stream that does not look at get_worker_info",
        words="each sample would come 8 times",
    ),
    refused(
        "data_endless",
        "loop_data.py",
        "endless",
        like="a stream of no known length",
        words="how many samples",
    ),
    exact(
        "data_few",
        "loop_data.py",
        "few",
        like="fewer samples than a batch",
        steps=2,
        faults=("kill rank 1 at step 1",),
        world_sizes=frozenset({3}),
    ),
    exact("data_ragged", "loop_data.py", "ragged", like="a last batch of five samples", steps=12),
    exact("data_drop_last", "loop_data.py", "drop_last", like="drop_last", steps=8),
    refused(
        "own_batches",
        "loop_data.py",
        "own_batches",
        like="a generator of batches",
        words="which can be read only once",
    ),
    refused(
        "batch_norm_of_one",
        "layers.py",
        "kind=batch_norm_cumulative",
        like="BatchNorm with a last micro-batch of one sample",
        words="BatchNorm, which normalises over the samples",
        options={"global_batch_size": 28},
    ),
    *(
        exact(f"stream_{kind}", "loop_data.py", kind, like=like)
        for kind, like in (
            ("by_epoch", "webdataset: a pipeline made for each epoch, shuffle(1000, seed=epoch)"),
            ("told", "a stream with set_epoch"),
            ("buffered", "datapipes.Shuffler: a buffer, by the global generator"),
        )
    ),
    *(
        refused(f"stream_{kind}", "loop_data.py", kind, like=like, words=words)
        for kind, like, words in (
            ("by_process", "webdataset: shuffle(1000)", "when it is begun again"),
            ("by_count", "webdataset: detshuffle, counts its epochs", "when it is begun again"),
        )
    ),
    refused(
        "stream_late_by_process",
        "loop_data.py",
        "late_by_process",
        like="a stream of shuffled shards, by the process, whose first samples are alike",
        words="different samples in",
        harmless_alone=True,
    ),
    *(
        refused(
            f"deadly_{name}",
            "deadly.py",
            f"loaders={loaders}",
            like="a damaged image that ends its reader",
            words="sample 77 of Images kills the process that reads it",
        )
        for name, loaders in (("in_step", 0), ("beside", 2))
    ),
    *(
        exact(f"open_{kind}", "handles.py", f"kind={kind}", like=like)
        for kind, like in (
            ("file", "a file of equal records that __init__ opens"),
            ("zip", "a zip of images that __init__ opens"),
            ("npz", "np.load of an archive, kept open"),
            ("database", "an SQLite connection that __init__ opens"),
        )
    ),
]

LOOPS = [
    refused(
        "backward",
        "loop_left_over.py",
        "backward",
        like="loss.backward() left over",
        words="backward",
    ),
    exact(
        "divided",
        "loop_left_over.py",
        "divided",
        like="loss / 4 left over: a quarter of the rate, exactly",
        warned="a mean that is divided",
    ),
    exact(
        "summed",
        "loop_left_over.py",
        "summed",
        like='reduction="sum" left over',
        warned="a sum over samples",
    ),
    exact(
        "scaled",
        "loop_left_over.py",
        "scaled",
        like="scaler.scale(loss) left over: a loss times 65536",
        unsound=True,
        warned="multiplied by 65,536",
    ),
    refused(
        "optimizer_step",
        "loop_left_over.py",
        "optimizer_step",
        like="optimizer.step() left over",
        words="optimizer.step()",
    ),
    exact(
        "clipped",
        "loop_clipped.py",
        like="clip_grad_norm_ left over: it finds nothing to clip",
        warned="calls clip_grad_norm_, which finds no gradients",
    ),
    refused(
        "break",
        "loop_left_over.py",
        "break",
        like="early stopping by break",
        words="a loop that was left after step 3 of 10",
    ),
    refused(
        "exit",
        "loop_left_over.py",
        "exit",
        like="sys.exit(0) in the middle",
        words="a loop that was left after step 3 of 10",
    ),
    refused(
        "second_loop",
        "loop_left_over.py",
        "second_loop",
        like="a second loop",
        words="another loop over a job",
    ),
    refused(
        "no_step",
        "loop_left_over.py",
        "no_step",
        like="a batch without a step",
        words="without a step",
    ),
    refused(
        "twice",
        "loop_left_over.py",
        "stepped_twice",
        like="two steps for a batch",
        words="a second call",
    ),
    refused(
        "detached",
        "loop_left_over.py",
        "detached",
        like="a loss without a graph",
        words="a tensor that does not depend on any parameter",
    ),
    refused("vector", "loop_left_over.py", "vector", like="a loss per sample", words="a scalar"),
    refused(
        "weights_by_hand",
        "loop_left_over.py",
        "weights_by_hand",
        like="weights clamped by hand after each batch",
        words="by hand",
    ),
    refused(
        "added_group",
        "loop_left_over.py",
        "added_group",
        like="a parameter group added while training",
        words="param",
    ),
    exact(
        "freezes_once",
        "loop_left_over.py",
        "freezes_once",
        like="requires_grad_(False) before a newcomer comes",
    ),
    exact(
        "freezes_within",
        "loop_left_over.py",
        "freezes_within",
        like="requires_grad_(False) within a step",
    ),
    exact("freezes", "loop_left_over.py", "freezes", like="requires_grad_(False) from a step on"),
    refused(
        "thaws",
        "loop_left_over.py",
        "thaws",
        like="requires_grad_(True) from a step on",
        words="requires_grad turned on while training",
    ),
    exact("rank_0_measures", "loop_rank0.py", like="rank 0 evaluates by itself"),
    refused(
        "rank_0_forgets",
        "loop_rank0.py",
        "forgets",
        like="rank 0 evaluates and leaves its model in eval mode",
        words="training",
        harmless_alone=True,
    ),
    exact(
        "accumulated",
        "loop_accumulate.py",
        like="gradient accumulation by micro_batches=4",
        options={"micro_batches": 4},
    ),
    exact(
        "accumulated_unsaid",
        "loop_accumulate.py",
        like="micro_batches=4 in the script alone, which its master hears of the first worker",
    ),
    refused(
        "other_epochs",
        "loop_mixup.py",
        like="brim run --epochs 5 for a script that says 2",
        words="--epochs",
        harmless_alone=True,
        options={"epochs": 5},
    ),
    refused(
        "other_batch",
        "loop_mixup.py",
        like="brim run --global-batch-size 48 for a script that says 24",
        words="--global-batch-size",
        harmless_alone=True,
        options={"global_batch_size": 48},
    ),
    refused(
        "range_of_epochs",
        "loop_range.py",
        like="for epoch in range(N) around the batches",
        words="need one loop over all epochs of a job",
    ),
    refused(
        "registered_by_rank",
        "loop_left_over.py",
        "registered_by_rank",
        like="a registered state that counts what this worker saw",
        words="the workers do not agree",
        harmless_alone=True,
    ),
    refused(
        "loss_module",
        "loop_loss_module.py",
        like="pytorch-metric-learning: a loss with weights that the model does not have",
        words="optimizer",
    ),
    exact(
        "loss_module_given",
        "loop_loss_module.py",
        "both",
        like="the same, with the loss among the models",
    ),
    exact("in_place", "loop_within.py", "in_place", like="inputs that are changed in place"),
    exact(
        "loop_cached",
        "loop_memory.py",
        "cached",
        like="an attribute that forward writes, in a loop",
    ),
    exact(
        "loop_generator",
        "loop_memory.py",
        "generator",
        like="a torch.Generator of the model, in a loop",
    ),
    exact(
        "loop_data_generator",
        "loop_memory.py",
        "data",
        like="a torch.Generator of the data, in a loop",
    ),
    exact(
        "loop_backbone",
        "loop_memory.py",
        "backbone",
        like="a backbone put to eval, later frozen, per epoch",
    ),
    *(
        exact(f"loop_{kind}", "loop_memory.py", kind, like=like, is_long=kind in ("set", "epoch"))
        for kind, like in (
            ("annealed", "a temperature in an attribute, multiplied after each step"),
            ("annealed_by_numpy", "Gumbel-softmax: a temperature that np.maximum and np.exp give"),
            ("set", "the same, set by job.committed before each pass"),
            ("epoch", "the same, set at the start of each epoch"),
            ("epoch_tensor", "a tensor in an attribute, set at the start of each epoch"),
        )
    ),
    *(
        refused(f"loop_{kind}", "loop_memory.py", kind, like=like, words=words)
        for kind, like, words in (
            ("counter", "a counter in the model, in a loop", "'calls'"),
            ("list", "a list in the model, in a loop", "'recent'"),
            ("hidden", "a hidden state carried in an attribute, in a loop", "'hidden'"),
        )
    ),
    exact("measures_within", "loop_within.py", "measures", like="job.evaluate every second step"),
    exact(
        "measures_by_itself",
        "loop_within.py",
        "measures_by_itself",
        like="eval() and back within an epoch",
    ),
    refused(
        "a_few_batches",
        "loop_within.py",
        "a_few",
        like="break behind a few batches of an epoch",
        words="a loop that was left",
    ),
    exact(
        "registered_state", "loop_state.py", like="a counter that is registered", epochs=4, steps=20
    ),
    exact(
        "carried_hidden",
        "loop_carried.py",
        like="pytorch/examples: word_language_model, its hidden state carried by job.carry",
    ),
    *(
        refused(f"carried_{kind}", "loop_carried.py", kind, like=like, words=words)
        for kind, like, words in (
            ("shuffled", "a hidden state carried over shuffled data", "shuffle=False"),
            ("wrong_dimension", "a hidden state whose dimension 0 is that of layers", "2 places"),
            ("misspelt", "a hidden state left under another name", "batch.carried['memory']"),
        )
    ),
    *(
        refused(
            f"hidden_{kind}",
            "loop_hidden.py",
            kind,
            like=like,
            words="was computed",
            harmless_alone=is_harmless,
        )
        for kind, like, is_harmless in (
            ("target", "a mean teacher's average that only the script knows", True),
            ("class_weights", "class weights in numpy that change with every step", True),
            ("rank", "a loss that is weighed by the rank", True),
            ("bank", "MoCo: a queue of earlier outputs in a list of the script", False),
        )
    ),
    exact(
        "hidden_target_given",
        "loop_hidden.py",
        "target_given",
        like="a mean teacher's average, joined beside its student",
        epochs=4,
        steps=20,
    ),
    refused(
        "hidden_other_optimizer",
        "loop_hidden.py",
        "other_optimizer",
        like="pyro: svi.step, whose optimizer brim.join was not given",
        words="a step of an optimizer (Adam) that brim.join was not given",
    ),
    exact("stopped", "loop_state.py", "stop", like="job.stop() after two epochs of four"),
    refused(
        "stopped_by_a_variable",
        "loop_state.py",
        "stop",
        "unregistered",
        like="early stopping by a counter that a newcomer does not have",
        words="They do not agree on job.stop()",
        harmless_alone=True,
    ),
    exact(
        "nan_warn",
        "loop_nan.py",
        "warn",
        like="NaN in one micro-batch: warn and train on",
        unsound=True,
    ),
    exact(
        "nan_skip",
        "loop_nan.py",
        "skip",
        like="NaN in one micro-batch: the step is left out",
        unsound=True,
    ),
    refused("nan_stop", "loop_nan.py", "stop", like="NaN in one micro-batch: stop", words="nan"),
]

LIVES = [
    life(
        "killed_at_the_first_step",
        "kill rank 0 at step 1",
        like="a death at once",
        world_sizes=frozenset({3}),
    ),
    life(
        "killed_at_the_last_step",
        "kill rank 2 at step 10",
        like="a death at the end",
        world_sizes=frozenset({3}),
    ),
    life(
        "killed_in_evaluation",
        "kill rank 1 at step 5",
        like="a death while it measures",
        world_sizes=frozenset({3}),
    ),
    life(
        "joined_at_the_last_step",
        "add 1 at step 9",
        like="a join at the end",
        world_sizes=frozenset({3}),
    ),
    life(
        "all_killed_one_by_one",
        "kill rank 0 at step 2; kill rank 0 at step 4; kill rank 0 at step 6",
        like="nobody of the first world is there at the end",
        world_sizes=frozenset({3}),
    ),
    life(
        "all_killed_at_once",
        "kill rank 0 at step 7; kill rank 1 at step 7; kill rank 2 at step 7",
        like="from the last checkpoint",
        options={"checkpoint_every": 3},
        world_sizes=frozenset({3}),
    ),
    life(
        "left_by_sigterm",
        "term rank 0 at step 2; term rank 1 at step 6",
        like="two leave",
        world_sizes=frozenset({1, 2, 3}),
    ),
    life(
        "shrunk_and_grown",
        "remove 2 at step 3; add 3 at step 6",
        like="three, one, four",
        world_sizes=frozenset({1, 3, 4}),
    ),
    life(
        "stopped_for_a_while",
        "stop rank 1 for 300ms at step 4",
        like="SIGSTOP",
        world_sizes=frozenset({3}),
    ),
    life(
        "suspended_and_resumed",
        "term rank 0 at step 4",
        KILL_AND_JOIN.replace("step 3", "step 6").replace("step 5", "step 7"),
        like="from one worker to three, by way of a checkpoint",
        workers=(1, 3),
    ),
    life(
        "suspended_at_an_epochs_end",
        "term rank 0 at step 4",
        "kill rank 1 at step 7; add 1 at step 8",
        like="asked to leave while it measures",
        workers=(1, 3),
    ),
    exact(
        "suspended_in_evaluation",
        "layers.py",
        "kind=group_norm",
        like="asked to leave with the last step of an epoch",
        faults=("term rank 0 at step 4", "kill rank 1 at step 5; add 1 at step 6"),
        workers=(1, 3),
    ),
    exact(
        "suspended_loop_at_an_epochs_end",
        "loop_mnist.py",
        like="the same in a loop over job.epochs",
        faults=("term rank 0 at step 4", "kill rank 1 at step 5; add 1 at step 6"),
        workers=(1, 3),
    ),
    exact(
        "suspended_schedule",
        "loop_schedules.py",
        "sequential",
        like="schedulers in a checkpoint",
        faults=("term rank 0 at step 3", "kill rank 1 at step 5; add 1 at step 6"),
        workers=(1, 3),
    ),
    exact(
        "suspended_pair",
        "loop_dcgan.py",
        like="two models and optimizers in a checkpoint",
        faults=("term rank 0 at step 3", "kill rank 1 at step 5; add 1 at step 6"),
        workers=(1, 3),
    ),
    exact(
        "suspended_scaler",
        "loop_scaler.py",
        like="a GradScaler in a checkpoint",
        epochs=4,
        steps=20,
        faults=("term rank 0 at step 6", "kill rank 1 at step 12; add 1 at step 14"),
        workers=(1, 3),
    ),
    exact(
        "suspended_numbers",
        "layers.py",
        "kind=complex",
        like="complex weights in a checkpoint",
        faults=("term rank 0 at step 3", "kill rank 1 at step 5; add 1 at step 6"),
        workers=(1, 3),
    ),
    exact(
        "suspended_stream",
        "loop_data.py",
        "stream",
        like="an IterableDataset, from the middle of an epoch",
        faults=("term rank 0 at step 3", "kill rank 1 at step 5; add 1 at step 6"),
        workers=(1, 3),
    ),
    exact(
        "suspended_shards",
        "loop_data.py",
        "shards",
        like="an IterableDataset with shards, from the middle of an epoch",
        faults=("term rank 0 at step 3", "kill rank 1 at step 5; add 1 at step 6"),
        workers=(1, 3),
    ),
    exact(
        "suspended_carried",
        "loop_carried.py",
        like="a hidden state that is carried, from the middle of an epoch",
        faults=("term rank 0 at step 3", "kill rank 1 at step 5; add 1 at step 6"),
        workers=(1, 3),
    ),
    life(
        "alone_and_killed",
        "kill rank 0 at step 3",
        like="the only worker, from the last checkpoint",
        workers=(1,),
        options={"checkpoint_every": 2},
        world_sizes=frozenset({1}),
    ),
    exact(
        "suspended_loop",
        "loop_state.py",
        like="a loop with state of its own, suspended in its second epoch",
        epochs=4,
        steps=20,
        faults=("term rank 0 at step 7", "kill rank 1 at step 9; add 1 at step 11"),
        workers=(1, 3),
    ),
    exact(
        "killed_in_evaluation_of_a_loop",
        "loop_mnist.py",
        like="a death in job.evaluate",
        faults=("kill rank 1 at step 5",),
        world_sizes=frozenset({3}),
    ),
    life("two_threads", KILL_AND_JOIN, like="--threads 2", options={"threads": 2}),
    life(
        "crowded",
        "add 5 at step 2",
        like="as many workers as micro-batches",
        world_sizes=frozenset({3, 8}),
    ),
    life(
        "torch_distributed",
        KILL_AND_JOIN,
        like="the same sum by torch.distributed",
        options={"transport": "distributed"},
    ),
]

LIGHTNING = [
    exact(
        "lightning",
        "lightning_file.py",
        like="a LightningModule whose loss asks for its epoch, step and batch",
        needs="lightning",
    ),
    exact(
        "lightning_plateau",
        "lightning_file.py",
        "kind=plateau",
        like="a LightningModule with ReduceLROnPlateau, suspended within an epoch",
        faults=("term rank 0 at step 3", "kill rank 1 at step 5; add 1 at step 7"),
        workers=(1, 3),
        needs="lightning",
    ),
    *(
        refused(
            f"lightning_{kind}",
            "lightning_file.py",
            f"kind={kind}",
            like=like,
            words=words,
            needs="lightning",
        )
        for kind, like, words in (
            ("hook", "gradients clipped in a hook", "Clipping.on_after_backward"),
            ("manual", "manual optimization", "manual optimization"),
            ("two", "two optimizers", "need one torch optimizer"),
            ("callbacks", "the Trainer's callbacks", "trainer.callbacks"),
        )
    ),
]

TRAINERS = [
    exact("trainer_lora", "loop_trainer.py", "lora", like="PEFT's LoRA by Trainer", needs="peft"),
    *(
        exact(
            f"trainer_{kind}",
            "loop_trainer.py",
            kind,
            like=like,
            needs="peft",
            is_long=True,
            **fields,
        )
        for kind, like, fields in (
            ("full", "all weights of a GPT by Trainer", {}),
            ("accumulated", "16 accumulated batches of one sample", {}),
            ("bf16", "bf16 by accelerate's autocast", {}),
            ("by_length", "samples grouped by length, the last batch left out", {"steps": 8}),
            ("early", "EarlyStoppingCallback, after two evaluations", {
                "epochs": 1, "steps": 4, "faults": ("kill rank 1 at step 3",), "world_sizes": frozenset({3}),
            }),
            ("metrics", "compute_metrics after each epoch", {}),
            ("neftune", "NEFTune's noise, smoothed labels", {}),
            ("one_stops", "a callback of one worker that stops all", {"steps": 8}),
            ("recomputed", "activation checkpointing, suspended within an epoch", {
                "faults": MANY_LIVES, "workers": (1, 3),
            }),
            ("short", "max_steps within an epoch, Adafactor", {"steps": 7}),
        )
    ),
    refused(
        "trainer_compiled",
        "loop_trainer.py",
        "compiled",
        like="torch_compile",
        words="got True, need False: which graphs a worker compiles",
        needs="peft",
        is_long=True,
    ),
    refused(
        "trainer_own_step",
        "loop_trainer.py",
        "own_step",
        like="a training_step that calls loss.backward()",
        words="got no call of self.accelerator.backward",
        needs="peft",
        is_long=True,
    ),
]  # fmt: skip

KERAS = [
    exact(
        "keras_fit",
        "loop_keras_fit.py",
        "small",
        like="Keras' compile and fit: LSTM, BatchNormalization, Dropout, callbacks, averaged weights",
        needs="keras",
    ),
    exact(
        "keras_fit_longer",
        "loop_keras_fit.py",
        "callbacks",
        like="the same, which stops early and lowers its learning rate",
        needs="keras",
        steps=30,
        epochs=3,
        is_long=True,
    ),
    exact("keras_file", "keras_file.py", like="a Keras model in a training file", needs="keras"),
    exact(
        "keras_file_optimizer",
        "keras_file.py",
        "kind=keras",
        like="a Keras model with an optimizer of Keras in a training file",
        needs="keras",
    ),
    exact(
        "keras_fit_resumed",
        "loop_keras_fit.py",
        "schedule",
        like="the same with a schedule, suspended within an epoch",
        needs="keras",
        steps=30,
        epochs=3,
        faults=("term rank 0 at step 13", "kill rank 1 at step 15; add 1 at step 17"),
        workers=(1, 3),
        is_long=True,
    ),
    *(
        exact(
            f"keras_{kind}_{optimizer}",
            "loop_keras.py",
            kind,
            optimizer,
            like=like,
            needs="keras",
            is_long=True,
        )
        for kind, optimizer, like in (
            ("norm", "torch", "Conv2D, BatchNormalization and a seeded Dropout of Keras"),
            ("norm", "adam", "the same, with an optimizer of Keras"),
            ("norm", "sgd", "the same"),
            ("norm", "rmsprop", "the same"),
            ("norm", "lion", "the same"),
            ("norm", "nadam", "the same"),
            ("norm", "adafactor", "the same"),
            ("augmented", "torch", "Keras' layers that augment pictures"),
            ("frozen", "torch", "a layer of Keras that is not trainable"),
            ("half", "torch", "Keras' policy mixed_bfloat16"),
            ("recurrent", "torch", "Keras' LSTM with dropout, and GRU, both ways"),
            ("attention", "torch", "Keras' MultiHeadAttention and LayerNormalization"),
            ("clicks", "adagrad", "Keras' Embedding"),
            ("own", "adam", "a keras.Model of one's own class, with a shared layer"),
            ("within", "torch", "layers of Keras in a module of torch"),
        )
    ),
    refused(
        "keras_file_regularizer",
        "keras_file.py",
        "kind=regularizer",
        like="a regularizer, which the loss of a training file does not see",
        words="got losses of its own",
        needs="keras",
    ),
]

TABLE = [
    *PUBLIC,
    *MODELS,
    *GROWN,
    *OPTIMIZERS,
    *DATA,
    *LOOPS,
    *LIVES,
    *LIGHTNING,
    *KERAS,
    *TRAINERS,
]
