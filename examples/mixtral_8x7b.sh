#!/bin/bash
# Mixtral 8x7B (2401.04088, table 1) on 8 nodes of 8 GPUs: tensor 1, pipeline 4, experts over 8 ranks.
#SBATCH --job-name=mixtral
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=8

MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --seq-length 4096
    --max-position-embeddings 32768
    --disable-bias-linear
    --init-method-std 0.01
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --normalization RMSNorm
    --position-embedding-type rope
    --swiglu
    --untie-embeddings-and-output-weights
    --no-masked-softmax-fusion
    --no-position-embedding
    --rotary-base 1000000
)
MOE_ARGS=(
    --num-experts 8
    --moe-router-topk 2
    --moe-router-load-balancing-type aux_loss
    --moe-aux-loss-coeff 1e-2
    --moe-grouped-gemm
    --moe-token-dispatcher-type alltoall
    --moe-permute-fusion
    --overlap-param-gather
    --overlap-grad-reduce
)
DATA_ARGS="--tokenizer-type Llama2Tokenizer --tokenizer-model ${TOKENIZER_MODEL} --data-path ${DATA_PATH} --split 99990,8,2"
PARALLEL="--tensor-model-parallel-size 1 --pipeline-model-parallel-size 4 --expert-model-parallel-size 8"
PARALLEL="$PARALLEL --num-layers-per-virtual-pipeline-stage 8 --use-distributed-optimizer --sequence-parallel"

srun --mpi=none python -u pretrain_gpt.py ${MODEL_ARGS[@]} ${MOE_ARGS[@]} ${DATA_ARGS} \
    --micro-batch-size 1 --global-batch-size 256 --lr 1e-4 --bf16 --recompute-activations ${PARALLEL}
