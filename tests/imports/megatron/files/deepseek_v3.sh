#!/bin/bash
# DeepSeek-V3 (2412.19437, section 4.2) without multi-token prediction on 128 nodes of 8 GPUs:
# pipeline 16 with two chunks per rank given as a layout, experts over 64 ranks.
NNODES=${SLURM_NNODES:-128}
PP=16
EP=64

case ${MODEL:-v3} in
    v2-lite) LAYERS=27; HIDDEN=2048 ;;
    v3 | v3-base)
        LAYERS=61
        HIDDEN=7168
        ;;
    *) echo "unknown model"; exit 2 ;;
esac

args=(
    --num-layers $LAYERS
    --hidden-size $HIDDEN
    --ffn-hidden-size 18432
    --num-attention-heads 128
    --kv-channels 128
    --seq-length 4096
    --max-position-embeddings 4096
    --position-embedding-type rope
    --normalization RMSNorm
    --swiglu
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0 --hidden-dropout 0.0
    --qk-layernorm
    --make-vocab-size-divisible-by 3232
    --tokenizer-type NullTokenizer --vocab-size 129279

    --multi-latent-attention
    --q-lora-rank 1536
    --kv-lora-rank 512
    --qk-head-dim 128
    --qk-pos-emb-head-dim 64
    --v-head-dim 128
    --rotary-scaling-factor 40 --mscale 1.0 --mscale-all-dim 1.0

    --num-experts 256
    --moe-layer-freq "([0]*3+[1]*$((LAYERS - 3)))"
    --moe-ffn-hidden-size $(( 2048 ))
    --moe-shared-expert-intermediate-size 2048
    --moe-router-topk 8
    --moe-router-num-groups 8 --moe-router-group-topk 4
    --moe-router-score-function sigmoid --moe-router-enable-expert-bias --moe-router-bias-update-rate 1e-3
    --moe-router-topk-scaling-factor 2.5 --moe-router-pre-softmax
    --moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 1e-4
    --moe-token-dispatcher-type alltoall --moe-grouped-gemm --moe-permute-fusion

    --pipeline-model-parallel-size $PP
    --pipeline-model-parallel-layout "Et|(tt|)*30L"
    --expert-model-parallel-size $EP
    --expert-tensor-parallel-size 1
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather

    --micro-batch-size 1
    --global-batch-size 15360
    --bf16
    --use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16
    --recompute-granularity full
    --recompute-method uniform
    --recompute-num-layers 1
    --lr 2.2e-4 --min-lr 2.2e-5 --train-samples 585937500
)

torchrun --nproc-per-node 8 --nnodes "$NNODES" --node-rank "$SLURM_NODEID" pretrain_gpt.py "${args[@]}" "$@"
