#!/bin/bash
# LLaVA-style pretraining with Megatron-LM: 8 GPUs
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 --nnodes 1 pretrain_vlm.py \
    --tensor-model-parallel-size 4 --pipeline-model-parallel-size 1 \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 \
    --seq-length 576 --decoder-seq-length 2048 --max-position-embeddings 4096 \
    --img-h 336 --img-w 336 --patch-dim 14 --vision-model-type clip \
    --micro-batch-size 1 --global-batch-size 32 --train-iters 1000 \
    --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear \
    --untie-embeddings-and-output-weights --make-vocab-size-divisible-by 128 --vocab-size 32000 \
    --bf16 --use-flash-attn --use-distributed-optimizer --lr 1e-4
