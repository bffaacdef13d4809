"""The way from a step's gradients to its update.

Clipping, loss scaling, optimizers, and schedulers of the learning rate.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.autograd.graph import _engine_run_backward
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR, ReduceLROnPlateau

from brim.domain.quantities import counted
from brim.errors import SpecError
from brim.train.checks import backward_errors
from brim.train.checks.attributes import is_plain
from brim.train.checks.schedules import ScheduleWatch, rates_of
from brim.train.state.flattening import NEED, NotCarried, flatten
from brim.train.state.restoring import put_in_order, renumbered, restore, taken_over

INTERVALS = ("step", "epoch")
ATTRIBUTES = "optimizer attributes"  # which no state_dict() has; carried, but not compared
ORDERED = "parameters in order"  # as the network has them: those of an older brim are not
_TORCHS_OWN = ("defaults", "state", "param_groups")  # of an optimizer's attributes
_BY_HAND = ("lr", "weight_decay", "momentum", "betas")  # what loops change by hand
_HORIZONS = ("T_max", "total_iters", "T_0")  # how many of its own steps a scheduler reckons with


class Optimization:
    """The optimizers of a job with all that belongs to them; the same on every worker.

    Args:
        model: whose gradients are clipped.
        optimizers: in the order in which they step.
        schedulers: of learning rates; each steps after every step or every epoch, as `interval`
            says.
        interval: `step`, `epoch`, or None for what the kind of scheduler asks for.
        monitor: the metric that ReduceLROnPlateau looks at; None where only one is logged.
        scaler: of losses in float16, or None.
        clip_norm: upper bound of the gradient's 2-norm, or None.

    Raises:
        SpecError: an optimizer or a scheduler that a job cannot have.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        schedulers: Sequence[Any] = (),
        interval: str | None = None,
        monitor: str | None = None,
        scaler: torch.amp.GradScaler | None = None,
        clip_norm: float | None = None,
    ) -> None:
        ids = {id(parameter) for parameter in model.parameters()}
        for optimizer in optimizers:
            check_optimizer(optimizer)
            strangers = (
                p for group in optimizer.param_groups for p in group["params"] if id(p) not in ids
            )
            if (stranger := next(strangers, None)) is not None:
                raise _no_models_own(stranger)
        self.optimizers, self._schedulers = tuple(optimizers), tuple(schedulers)
        self._model, self._scaler, self.clip_norm = model, scaler, clip_norm
        self._monitor = monitor
        self._intervals = [_interval_of(scheduler, interval) for scheduler in schedulers]
        self._is_interval_given = interval is not None
        self._is_stepping = False
        self._rates: list[Any] | None = None
        self._has_tensors = False  # among these
        self._values_before: list[Any] = []
        self._trained_before: list[bool] = []
        self._weights: dict[object, Tensor] = {}  # micro-batches of a job have three sizes at most
        self._names = [name for name, _ in model.named_parameters()]
        self._parameters = list(model.parameters())
        self._numbers = [put_in_order(optimizer, self._parameters) for optimizer in optimizers]
        # torch's function around the engine shows its caller's context to the threads of devices; of
        # a network on the CPU there are none, and each node would only copy it.
        is_on_host = all(parameter.is_cpu for parameter in self._parameters)
        engine: Any = Variable._execution_engine
        self._run_backward = engine.run_backward if is_on_host else _engine_run_backward
        self._group_count = len(list(self._groups()))
        self.schedules = ScheduleWatch(optimizers, schedulers)
        self._own_before = [_plain_ones(optimizer) for optimizer in optimizers]
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(self._refuse_steps_by_hand)

    @property
    def is_scaled(self) -> bool:
        """Return whether losses are scaled, for float16."""
        return self._scaler is not None

    @property
    def are_disjoint(self) -> bool:
        """Return whether no two optimizers have a parameter in common: one loss is for all then."""
        if len(self.optimizers) == 1:
            return True
        ids = [
            id(p)
            for optimizer in self.optimizers
            for p in {
                id(p): p for group in optimizer.param_groups for p in group["params"]
            }.values()
        ]
        return len(ids) == len(set(ids))

    # Micro-batches --------------------------------------------------------------------------------

    def backward(
        self, loss: Tensor, weight: float, optimizer: torch.optim.Optimizer | None
    ) -> None:
        """Add the gradients of a micro-batch's loss.

        Args:
            weight: its part of the step's samples.
            optimizer: whose parameters alone get gradients; None for all.
        """
        own_optimizer = None
        if optimizer is not None:
            own_optimizer = [
                p for group in optimizer.param_groups for p in group["params"] if p.requires_grad
            ]
            if not own_optimizer:  # all of them are frozen, and none would mean all
                return
        try:
            if self._scaler is not None:
                torch.autograd.backward(self._scaler.scale(loss * weight), inputs=own_optimizer)
                return
            # What torch.autograd.backward ends in. It first imports sympy, a second's worth of
            # modules, and compares the shapes of the two by it, which are the same here.
            self._run_backward(
                (loss,),
                (self._weight_as(loss, weight),),
                False,  # keep_graph
                False,  # create_graph
                tuple(own_optimizer or ()),
                allow_unreachable=True,
                accumulate_grad=True,
            )
        except RuntimeError as error:
            explanation = backward_errors.explanation_of(error)
            if explanation is None:
                raise
            raise explanation from error

    def _weight_as(self, loss: Tensor, weight: float) -> Tensor:
        """The gradient that `(loss * weight).backward()` begins with, without the product."""
        key = (weight, loss.shape, loss.dtype, loss.device)
        gradient = self._weights.get(key)
        if gradient is None:
            gradient = self._weights[key] = torch.full_like(loss, weight, requires_grad=False)
        return gradient

    def begin(self) -> None:
        """Begin a step.

        Learning rates may have been changed since the last one, and stay until its end.

        Raises:
            SpecError: the loop has stepped a scheduler that it should not.
        """
        self.schedules.check()
        self._rates = None
        self._values_before = [
            value.detach().clone() if isinstance(value, Tensor) else value
            for value in self._values_by_hand()
        ]
        self._trained_before = [parameter.requires_grad for parameter in self._parameters]

    def give_up(self) -> None:
        """Put back the loop body's manual changes in a step that does not count.

        The body may have run on some workers and not on others, which fetched their samples still:
        without this they would not agree where the step begins again.
        """
        places = ((group, name) for group in self._groups() for name in _BY_HAND)
        for (group, name), value in zip(places, self._values_before, strict=False):
            if isinstance(group.get(name), Tensor):
                group[name].copy_(value)
            elif name in group:
                group[name] = value
        for parameter, was_trained in zip(self._parameters, self._trained_before, strict=True):
            parameter.requires_grad_(was_trained)

    def check_rates(self) -> None:
        """Check that the step's own values are unchanged.

        Learning rates, and the trained parameters, stay as they were at its first micro-batch.

        Raises:
            SpecError: a loop counts micro-batches, of which workers have different numbers, or has
                stepped a scheduler.
        """
        if self._schedulers:
            self.schedules.check_steps()
        now = self._values_by_hand()
        if len(now) != self._group_count * len(_BY_HAND):
            raise SpecError(
                "your training loop",
                got="another parameter group, added while training",
                need="the parameter groups that brim.join saw: newcomers and checkpoints have "
                "those",
                hint="add every group before brim.join, with lr=0 if it should not train yet",
            )
        if self._rates is None:
            self._has_tensors = bool([value for value in now if isinstance(value, Tensor)])
        if self._has_tensors:
            now = list(map(_plain, now))
        now += [parameter.requires_grad for parameter in self._parameters]
        if self._rates is None:
            self._rates = now
        if now != self._rates:
            index = next(i for i, value in enumerate(now) if value != self._rates[i])
            of_group = index < self._group_count * len(_BY_HAND)
            raise SpecError(
                "your training loop",
                got=f"{self._name_of(index)} changed from {self._rates[index]} to {now[index]} "
                "within a step",
                need="one value for all micro-batches of a step: the loop's body runs once for "
                "each micro-batch",
                hint="give a scheduler to brim.join, or set the value from job.committed or "
                "job.epoch"
                if of_group
                else "leave it out: job.step(loss, optimizer=...) changes the parameters of that "
                "optimizer alone",
            )

    def _values_by_hand(self) -> list[Any]:
        """Return the values of parameter groups that a loop may change by hand."""
        return [
            group.get(name)
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for name in _BY_HAND
        ]

    def learning_rate(self) -> float | list[float] | None:
        """Return the learning rate of the present step.

        It is one number where all parameter groups have the same, else one for each.

        None where the optimizers know of no such thing.
        """
        rates = rates_of(self._groups())
        return rates if len(set(rates)) > 1 else rates[0] if rates else None

    def _name_of(self, index: int) -> str:
        group, name = divmod(index, len(_BY_HAND))
        if group < self._group_count:
            return f"{_BY_HAND[name]!r} of parameter group {group}"
        return f"requires_grad of {self._names[index - self._group_count * len(_BY_HAND)]!r}"

    def _groups(self) -> Iterator[dict[str, Any]]:
        for optimizer in self.optimizers:
            yield from optimizer.param_groups

    def _refuse_steps_by_hand(self, *_: object) -> None:
        if not self._is_stepping:
            raise SpecError(
                "your training loop",
                got="a call of optimizer.step()",
                need="job.step(loss) alone: brim steps the optimizer once all workers' gradients "
                "are in",
                hint="remove optimizer.step() from the loop",
            )

    # Steps and epochs -----------------------------------------------------------------------------

    def clip(self, rows: Sequence[Tensor] = (), owned: Sequence[nn.Parameter] = ()) -> None:
        """Scale the gradients down where their norm is too large; do so before `step`.

        Args:
            rows: gradients of embeddings that are trained by rows, all of them.
            owned: what has those of them, as its gradients, that this worker applies.
        """
        if self.clip_norm is None:
            return
        self._unscale()
        parameters = list(self._model.parameters())
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = get_total_norm([*gradients, *rows])
        clip_grads_with_norm_([*parameters, *owned], self.clip_norm, norm)

    def step(self) -> None:
        """Update the parameters from their gradients.

        Then step the schedulers that step with every step.
        """
        self._is_stepping = True
        try:
            for optimizer in self.optimizers:
                self._step(optimizer)
            if self._scaler is not None:
                self._scaler.update()
        finally:
            self._is_stepping = False
        self._step_schedulers("step", {})
        self.schedules.remember()

    def _step(self, optimizer: torch.optim.Optimizer) -> None:
        """Step one optimizer.

        Raises:
            SpecError: it asks for a closure, as SAM does although its argument is optional.
        """
        try:
            self._scaler.step(optimizer) if self._scaler is not None else optimizer.step()
        except Exception as error:
            if "closure" in f"{type(error).__name__} {error}".lower():
                raise _computes_again(optimizer, "optimizer") from error
            raise

    def _unscale(self) -> None:
        if self._scaler is not None:
            for optimizer in self.optimizers:
                self._scaler.unscale_(optimizer)

    def end_epoch(self, metrics: Mapping[str, float]) -> None:
        """Step the schedulers that step with every epoch.

        Args:
            metrics: of this epoch.

        Raises:
            SpecError: a scheduler needs a metric that was not logged, or the loop has stepped one.
        """
        self.schedules.check()
        self._step_schedulers("epoch", metrics)
        self.schedules.remember()

    def _step_schedulers(self, interval: str, metrics: Mapping[str, float]) -> None:
        for scheduler, own_interval in zip(self._schedulers, self._intervals, strict=True):
            if own_interval != interval:
                continue
            if isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step(self._monitored(metrics))
            else:
                scheduler.step()

    def _monitored(self, metrics: Mapping[str, float]) -> float:
        name = self._monitor or (next(iter(metrics)) if len(metrics) == 1 else None)
        if name is not None and name in metrics:
            return metrics[name]
        raise SpecError(
            "ReduceLROnPlateau",
            got=f"{', '.join(metrics) or 'no metric'} at the end of the epoch",
            need=f"the metric {name!r}" if name else "the name of the metric to look at",
            hint='job.log(loss=...) in each epoch, and brim.join(..., monitor="loss")',
        )

    def check_horizon(self, epochs: int, steps: int) -> None:
        """Check that a scheduler which steps with every epoch was not made to step with every step.

        Raises:
            SpecError: it reckons with more steps of its own than there are epochs, and nobody said
                when it steps.
        """
        for scheduler, interval in zip(self._schedulers, self._intervals, strict=True):
            horizon = next(
                (getattr(scheduler, name) for name in _HORIZONS if hasattr(scheduler, name)), None
            )
            if (
                not self._is_interval_given
                and interval == "epoch"
                and isinstance(horizon, int)
                and horizon > epochs
                and horizon >= steps
            ):
                raise SpecError(
                    type(scheduler).__name__,
                    got=f"a schedule of {counted(horizon, 'step')} that steps after each of "
                    f"{counted(epochs, 'epoch')}",
                    need="a word on when it steps",
                    hint='scheduler_interval="step" steps it with the optimizer, "epoch" after '
                    "each epoch",
                )

    # State ----------------------------------------------------------------------------------------

    def get(self) -> dict[str, Any]:
        """The state as a tree; its tensors are the optimizers' own, not copies."""
        states = [optimizer.state_dict() for optimizer in self.optimizers]
        return {
            "optimizer": states[0] if len(states) == 1 else states,
            "scheduler": [scheduler.state_dict() for scheduler in self._schedulers],
            "scaler": None if self._scaler is None else self._scaler.state_dict(),
            ATTRIBUTES: self._changed_attributes(),
            ORDERED: True,
        }

    def _changed_attributes(self) -> list[dict[str, Any]]:
        """Return, of each optimizer, the plain attributes that its steps change: counters, mostly.

        With them, those in which it keeps tensors beside its state, averages of weights for one.
        """
        return [
            {
                name: copy.copy(value)
                for name, value in _plain_ones(optimizer).items()
                if name not in previous or previous[name] != value
            }
            | _tensors_in(optimizer)
            for optimizer, previous in zip(self.optimizers, self._own_before, strict=True)
        ]

    def check_carried(self) -> None:
        """Check that all of the state can be carried to newcomers and into checkpoints.

        Raises:
            SpecError: an optimizer or a scheduler keeps something else.
        """
        for optimizer in self.optimizers:
            check_carried("optimizer", optimizer)
        for scheduler in self._schedulers:
            check_carried("scheduler", scheduler)

    def put(self, tree: Mapping[str, Any]) -> None:
        """Take the state that `get` gave elsewhere."""
        states = tree["optimizer"] if isinstance(tree["optimizer"], list) else [tree["optimizer"]]
        for optimizer, state, numbers in zip(self.optimizers, states, self._numbers, strict=True):
            restore(optimizer, state if tree.get(ORDERED) else renumbered(state, numbers))
        for optimizer, attributes in zip(self.optimizers, tree.get(ATTRIBUTES, []), strict=False):
            for name, value in attributes.items():
                own = getattr(optimizer, name, None)
                setattr(optimizer, name, taken_over(own, value, self._parameters[0].device))
        for scheduler, state in zip(self._schedulers, tree["scheduler"], strict=True):
            scheduler.load_state_dict(copy.deepcopy(state))  # some take it apart
        if self._scaler is not None and tree["scaler"]:
            self._scaler.load_state_dict(tree["scaler"])
        self.schedules.remember()


def check_optimizer(optimizer: object, field: str = "optimizer") -> None:
    """Check that a job can have this optimizer.

    Raises:
        SpecError: it is none, or one that computes the loss again within a step.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise SpecError(field, got=f"a {type(optimizer).__name__}", need="a torch.optim.Optimizer")
    needed = "closure" if isinstance(optimizer, torch.optim.LBFGS) else _needed_by_step(optimizer)
    if "closure" in needed:
        raise _computes_again(optimizer, field)
    if needed:
        raise SpecError(
            field,
            got=f"{type(optimizer).__name__}, whose step() needs {needed!r}",
            need="an optimizer whose step() needs no argument",
            hint="def step(self, closure=None), and the rest in an attribute that the loop sets",
        )
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):  # torch's __init__ did not run
        library = type(optimizer).__module__.partition(".")[0]
        need, hint = _WRAPPERS.get(library, _OTHER_WRAPPER)
        raise SpecError(
            field, got=f"{library}'s {type(optimizer).__name__}, a wrapper", need=need, hint=hint
        )


def _no_models_own(tensor: Tensor) -> SpecError:
    """Return the error of a tensor to train that is in no model."""
    is_parameter = isinstance(tensor, nn.Parameter)
    return SpecError(
        "optimizer",
        got="a parameter that no model has"
        if is_parameter
        else f"a tensor of shape {list(tensor.shape)} that is no nn.Parameter of a model",
        need="only parameters of the model: other gradients are not summed over the workers",
        hint="brim.join([model, criterion], optimizer) if the loss has its own weights"
        if is_parameter
        else "put it in a module before the optimizer is made (criterion.a = nn.Parameter("
        "criterion.a.detach()), nn.ParameterList([a])), and brim.join([model, criterion], "
        "optimizer)",
    )


def _computes_again(optimizer: torch.optim.Optimizer, field: str) -> SpecError:
    """Return the error of an optimizer that needs a closure."""
    return SpecError(
        field,
        got=f"{type(optimizer).__name__}, which computes the loss again within a step",
        need="an optimizer whose step() takes no closure: a step here is one pass over its "
        "micro-batches",
        hint="torch.optim.Adam(model.parameters())",
    )


def _needed_by_step(optimizer: torch.optim.Optimizer) -> str:
    """Return the first argument that an optimizer's step() cannot be called without, or nothing.

    One that has a step of its own, beside that of its class, shows it when it steps.
    """
    own = vars(optimizer).get("step")
    if own is not None and not hasattr(own, "_wrapped_by_lr_sched"):  # torch's schedulers wrap it
        return ""
    try:
        _, *arguments = inspect.signature(type(optimizer).step).parameters.values()
    except (TypeError, ValueError):  # no signature is known
        return ""
    collects = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return next(
        (
            argument.name
            for argument in arguments
            if argument.default is argument.empty and argument.kind not in collects
        ),
        "",
    )


def check_carried(kind: str, thing: Any) -> None:
    """Check that all that a thing keeps can be carried to newcomers and into checkpoints.

    Raises:
        SpecError: it keeps something else.
    """
    try:
        flatten(thing.state_dict())
    except NotCarried as error:
        raise SpecError(
            f"{kind} {type(thing).__name__}",
            got=f"{error.actual} in state_dict(), at {'.'.join(error.path)}",
            need=f"a state that brim can carry: {NEED}",
            hint="have state_dict() return those, and load_state_dict() make the rest of them",
        ) from error


# What to write in place of an optimizer that a library wraps around another one.
_WRAPPERS = {
    "accelerate": (
        "the optimizer itself: brim places, sums and steps, as Accelerator would",
        "leave out accelerator.prepare, and give model and optimizer to brim.join as they are",
    ),
    "opacus": (
        "an optimizer of gradients that are summed over workers: DP-SGD clips the gradient of "
        "each sample and draws its noise once for all of them",
        "train without brim where privacy is promised, or without PrivacyEngine.make_private",
    ),
}
_OTHER_WRAPPER = (
    "a torch.optim.Optimizer whose __init__ has run, so that torch's hooks see its steps",
    "give brim.join the optimizer inside, such as optimizer.optimizer",
)


def _interval_of(scheduler: Any, interval: str | None) -> str:
    if interval is not None and interval not in INTERVALS:
        raise SpecError("scheduler_interval", got=repr(interval), need="'step' or 'epoch'")
    step: Callable[..., Any] | None = getattr(scheduler, "step", None)
    is_module = isinstance(scheduler, nn.Module)
    is_other = is_module or isinstance(scheduler, torch.optim.Optimizer)
    if not callable(step) or not hasattr(scheduler, "state_dict") or is_other:
        raise SpecError(
            "scheduler",
            got=f"a {type(scheduler).__name__}",
            need="a scheduler of torch.optim.lr_scheduler",
            hint='job.register_state("average", average) for an average of the weights, and other '
            "models in a list with the first: brim.join([model, other], optimizer)"
            if is_module
            else "",
        )
    if _needs_epoch(step):
        raise SpecError(
            "scheduler",
            got=f"a {type(scheduler).__name__}, whose step() takes the epoch",
            need="one whose step() takes nothing, as those of torch.optim.lr_scheduler",
            hint='job.register_state("scheduler", scheduler), and scheduler.step(epoch) as the '
            "first line of `for epoch in job.epochs(N):`",
        )
    if interval is not None:
        return interval
    return "step" if isinstance(scheduler, OneCycleLR | CyclicLR) else "epoch"


def _needs_epoch(step: Callable[..., Any]) -> bool:
    """Return whether a scheduler's step() cannot be called as brim calls it.

    ReduceLROnPlateau's takes a metric, which brim has.
    """
    try:
        inspect.signature(step).bind()
    except TypeError:
        return not isinstance(getattr(step, "__self__", None), ReduceLROnPlateau)
    except ValueError:  # no signature is known
        return False
    return False


def _plain_ones(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the attributes of an optimizer that are numbers, text or lists of them."""
    return {
        name: copy.copy(value)
        for name, value in vars(optimizer).items()
        if name not in _TORCHS_OWN and is_plain(value)
    }


def _tensors_in(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the attributes of an optimizer that are tensors, or lists and dicts of them.

    Those that list its parameters are left out.
    """
    ids = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return {
        name: value
        for name, value in vars(optimizer).items()
        if name not in _TORCHS_OWN
        and not is_plain(value)
        and _holds_only(value, lambda tensor: id(tensor) not in ids)
        and _is_carried({name: value})
    }


def _holds_only(value: Any, accepts: Callable[[Tensor], bool]) -> bool:
    """Return whether a value consists of accepted tensors and plain ones."""
    match value:
        case Tensor():
            return accepts(value)
        case dict():
            parts = list(value.values())
            return is_plain(list(value)) and all(_holds_only(part, accepts) for part in parts)
        case list() | tuple():
            return all(_holds_only(part, accepts) for part in value)
    return is_plain(value)


def _is_carried(tree: Any) -> bool:
    try:
        flatten(tree)
    except NotCarried:
        return False
    return True


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
