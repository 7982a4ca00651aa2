#!/usr/bin/env bash
# Llama 3 8B (2407.21783, table 3) in fp8, context parallelism over 2 ranks, one node.
set -euo pipefail

CKPT=${1:-checkpoints/llama3_8b}
TOKENIZER_ARG=${2:-MOCK}
DATA_ARG="${3:-MOCK}"

NUM_NODES=1
GPUS_PER_NODE=8
TP_SIZE=1; CP_SIZE=2; PP_SIZE=1
MICRO_BATCH=1
SEQ_LENGTH=8192
DTYPE="${DTYPE:-fp8}"

MODEL_ARGS=(
    --use-mcore-models
    --num-layers 32 --hidden-size 9223372036854775808 --ffn-hidden-size 14336
    --num-attention-heads 32 --group-query-attention --num-query-groups 8 --kv-channels 128
    --seq-length $SEQ_LENGTH --max-position-embeddings $SEQ_LENGTH
    --position-embedding-type rope --rotary-base 1000000
    --swiglu --normalization RMSNorm --disable-bias-linear
    --attention-dropout 0.0 --hidden-dropout 0.0
    --untie-embeddings-and-output-weights
    --init-method-std 0.0134
    --attention-backend fused
)
if [[ "$DTYPE" == "fp8" ]]; then
    MODEL_ARGS+=( "--fp8-format hybrid" "--fp8-amax-history-len 1024" "--fp8-amax-compute-algo max" )
    MODEL_ARGS+=( --fp8-param-gather )
fi

if [ "$TOKENIZER_ARG" = "MOCK" ] || [ "$DATA_ARG" = "MOCK" ] || [ -z "$TOKENIZER_ARG" ]; then
    DATA_ARGS=( --mock-data --tokenizer-type NullTokenizer --vocab-size 128255 )
else
    DATA_ARGS=( --data-path "$DATA_ARG" --tokenizer-type HuggingFaceTokenizer --tokenizer-model "$TOKENIZER_ARG" )
fi

OPTIONS="--bf16 --grad-reduce-in-bf16 --cross-entropy-loss-fusion --cross-entropy-fusion-impl te \
    --calculate-per-token-loss --lr 0.00015 --min-lr 0.00001 --clip-grad 1.0 --manual-gc"

run_cmd="torchrun --nproc_per_node=$GPUS_PER_NODE --nnodes=$NUM_NODES pretrain_gpt.py ${MODEL_ARGS[*]} \
    --micro-batch-size $MICRO_BATCH --global-batch-size 128 $OPTIONS ${DATA_ARGS[*]} \
    --tensor-model-parallel-size $TP_SIZE --context-parallel-size $CP_SIZE --pipeline-model-parallel-size $PP_SIZE \
    --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --save $CKPT --load $CKPT --save-interval 1000"

if ! mkdir -p "$CKPT"; then
    exit 1
fi
echo "$run_cmd"
eval "$run_cmd"
