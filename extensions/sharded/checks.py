"""What must suit the number of processes."""

from collections.abc import Set

from models.errors import InputError

GATHER = "quantize.linear.float8.enable_fsdp_float8_all_gather"


def data_parallel_degrees(config, args, fp8_layers: Set[str]) -> tuple[int, int]:
    """Check what must suit the number of processes.

    Returns the number of replicas, and the number of processes that share the parameters,
    gradients and optimizer states of one. Raises `InputError`.
    """
    degrees, training, count = config.parallelism, config.training, config.sharded.processes
    replicas, shards = degrees.data_parallel_replicate_degree, degrees.data_parallel_shard_degree
    if shards == -1:
        shards = max(1, count // replicas)
    if replicas * shards != count:
        raise InputError(
            "parallelism.data_parallel_replicate_degree x data_parallel_shard_degree is "
            f"{replicas} x {shards}, which must be sharded.processes, {count}: change a degree (1 "
            "and -1 always fit), or the number of processes"
        )
    if shards == 1 < count:
        # the loss is divided by all ranks' tokens before DDP takes the mean over ranks
        raise InputError(
            f"parallelism.data_parallel_replicate_degree={count} leaves nothing to shard, and "
            f"torchtitan 0.2.2 then divides gradients by the {count} processes twice: set it "
            "to 1, or to less than the processes"
        )
    batch = training.global_batch_size
    if batch > 0 and batch % (training.local_batch_size * count):
        raise InputError(
            f"training.global_batch_size={batch}: expected a multiple of local_batch_size x "
            f"processes, {training.local_batch_size} x {count}, or -1"
        )
    if fp8_layers and config.quantize.linear.float8.enable_fsdp_float8_all_gather:
        _check_gather(config, args, fp8_layers, shards)
    return replicas, shards


def _check_gather(config, args, fp8_layers: Set[str], shards: int) -> None:
    """Check that FSDP can gather the weights of the FP8 layers in FP8."""
    if shards == 1:
        raise InputError(
            f"{GATHER} needs weights that processes share: set sharded.processes to 2 or more, or "
            "this to false"
        )
    if args.enable_weight_tying and "output" in fp8_layers:
        raise InputError(
            f"the head of {config.model.flavor} is also its embedding, which FSDP gathers in bf16: "
            "set quantize.linear.float8.filter_fqns to [output]"
        )
    uneven = [name for name, (rows, _) in args.linear_shapes().items() if rows % shards]
    if fp8_layers.intersection(uneven):
        raise InputError(
            f"FP8 all-gather shards rows evenly, and the rows of {uneven[0]} do not divide by "
            f"{shards}: set {GATHER} to false, or shard over fewer processes"
        )
