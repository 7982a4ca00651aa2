#!/bin/bash
# GPT-3 with 175 billion parameters (2005.14165, table 2.1) on 128 nodes of 8 GPUs.
# Usage: gpt3_175b.sh CHECKPOINTS LOGS VOCABULARY MERGES DATA

export CUDA_DEVICE_MAX_CONNECTIONS=1

gpus=8
nodes=128
: ${MASTER_ADDR:=localhost}
WORLD_SIZE=$((gpus * nodes))

CHECKPOINTS=$1
LOGS=$2
VOCABULARY=$3
MERGES=$4
DATA=$5   # prefix of the .bin and .idx files

LAUNCH=(
    --nproc_per_node $gpus
    --nnodes $nodes
    --master_addr "$MASTER_ADDR"
    --master_port ${MASTER_PORT:-6000}
)

MODEL=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
    --attention-backend auto        # flash, fused or unfused, whichever is there
)

TRAINING=(
    --micro-batch-size 1
    --global-batch-size $((WORLD_SIZE / 64 * 96))
    --rampup-batch-size 16 16 5859375
    --train-iters 500000
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.95
    --init-method-std 0.006
    --clip-grad 1.0
    --fp16
    --lr 6.0e-5
    --lr-decay-style cosine
    --min-lr 6.0e-6
    --lr-warmup-fraction .001
    --lr-decay-iters 430000
)

PARALLEL=( --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 )

torchrun "${LAUNCH[@]}" pretrain_gpt.py \
    ${MODEL[@]} \
    ${TRAINING[@]} \
    ${PARALLEL[@]} \
    --data-path $DATA --vocab-file $VOCABULARY --merge-file $MERGES --split 949,50,1 \
    --log-interval 100 --save-interval 10000 --eval-interval 1000 --eval-iters 10 \
    --save $CHECKPOINTS --load $CHECKPOINTS --tensorboard-dir $LOGS 2>&1 | tee "$LOGS/training.log"
