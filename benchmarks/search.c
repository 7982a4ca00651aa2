/* The dual queue of semu.searcher.kernels.interleave without memory limits: the same data structures, plain C. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int64_t i64;
typedef int32_t i32;
typedef uint64_t u64;

i64 interleave(i64 num_ranks, i64 num_stages, i64 num_groups, i64 num_links, i64 batch, i64 rows, const i64 *ptr, const i32 *rank,
                const i32 *succ_ptr, const i32 *succ, const double *succ_s, const i32 *succ_link, const i32 *num_pred,
                const i32 *forward_ptr, const i32 *forward_pairs, const i32 *backward_ptr, const i32 *backward_pairs,
                const double *latency, const i32 *sequences, const i32 *back_sequences, i32 *order, i32 *run,
                double *start, double *end, double *makespan, i64 *count)
{
    i64 total = ptr[num_ranks], words = 1;
    for (i64 r = 0; r < num_ranks; r++) {
        i64 w = (forward_ptr[(r + 1) * num_groups] - forward_ptr[r * num_groups] + 63) / 64;
        if (w > words) words = w;
    }
    u64 *bits = malloc(num_ranks * 2 * words * sizeof(u64));
    i64 *low = malloc(num_ranks * 2 * sizeof(i64)), *num_ready = malloc(num_ranks * 2 * sizeof(i64));
    i32 *place = calloc(num_stages, sizeof(i32)), *stage_at = malloc(num_ranks * 2 * words * 64 * sizeof(i32));
    double *ready = malloc(num_stages * sizeof(double)), *link_free = malloc((num_links + 1) * sizeof(double));
    i32 *waiting = malloc(num_stages * sizeof(i32)), *pending = malloc((total + 1) * sizeof(i32));
    double *key = malloc(num_ranks * sizeof(double)), *now_of = malloc(num_ranks * sizeof(double));
    i64 *head = malloc(num_ranks * sizeof(i64)), *tail = malloc(num_ranks * sizeof(i64));
    i64 *done = malloc(num_ranks * sizeof(i64)), *last = malloc(num_ranks * sizeof(i64));
    for (i64 b = 0; b < batch; b++) {
        i64 row = b < rows ? b : rows - 1;
        double longest = 0;
        for (i64 r = 0; r < num_ranks; r++) {
            for (int kind = 0; kind < 2; kind++) {
                const i32 *sequence = (kind ? back_sequences : sequences) + b * num_groups;
                const i32 *group_ptr = (kind ? backward_ptr : forward_ptr) + r * num_groups;
                const i32 *pairs = kind ? backward_pairs : forward_pairs;
                i32 *at = stage_at + (r * 2 + kind) * words * 64, spot = 0;
                for (i64 i = 0; i < num_groups; i++)
                    for (i32 e = group_ptr[sequence[i]]; e < group_ptr[sequence[i] + 1]; e++) {
                        i32 stage = 2 * pairs[e] + kind;
                        place[stage] = spot;
                        at[spot++] = stage;
                    }
                num_ready[r * 2 + kind] = 0;
                low[r * 2 + kind] = words;
            }
            head[r] = tail[r] = ptr[r];
            done[r] = 0, last[r] = 1, key[r] = INFINITY, now_of[r] = 0;
        }
        memset(bits, 0, num_ranks * 2 * words * sizeof(u64));
        memset(ready, 0, num_stages * sizeof(double));
        memcpy(waiting, num_pred, num_stages * sizeof(i32));
        for (i64 i = 0; i < num_links; i++) link_free[i] = 0;
        for (i64 stage = 0; stage < num_stages; stage += 2)
            if (num_pred[stage] == 0) {
                i64 q = rank[stage] * 2, spot = place[stage];
                bits[q * words + (spot >> 6)] |= 1ULL << (spot & 63);
                if (spot >> 6 < low[q]) low[q] = spot >> 6;
                num_ready[q]++;
                key[rank[stage]] = 0;
            }
        i64 ran = 0;
        while (ran < total) {
            i64 r = 0;
            double now = key[0];
            for (i64 other = 1; other < num_ranks; other++)
                if (key[other] < now) r = other, now = key[other];
            if (now == INFINITY) break;
            while (head[r] < tail[r] && ready[pending[head[r]]] <= now) {
                i32 stage = pending[head[r]++];
                i64 q = r * 2 + (stage & 1), word = place[stage] >> 6;
                bits[q * words + word] |= 1ULL << (place[stage] & 63);
                if (word < low[q]) low[q] = word;
                num_ready[q]++;
            }
            i64 kind = 1 - last[r];
            if (num_ready[r * 2 + kind] == 0) kind = 1 - kind;
            i64 q = r * 2 + kind, word = low[q];
            while (bits[q * words + word] == 0) word++;
            low[q] = word;
            u64 mask = bits[q * words + word];
            i32 stage = stage_at[(q * words + word) * 64 + __builtin_ctzll(mask)];
            bits[q * words + word] = mask & (mask - 1);
            if (--num_ready[q] == 0) low[q] = words;
            double finish = now + latency[stage];
            start[row * num_stages + stage] = now;
            end[row * num_stages + stage] = finish;
            order[row * total + ptr[r] + done[r]++] = stage;
            run[row * total + ran++] = stage;
            last[r] = kind;
            now_of[r] = finish;
            if (finish > longest) longest = finish;
            for (i32 e = succ_ptr[stage]; e < succ_ptr[stage + 1]; e++) {
                i32 target = succ[e], link = succ_link[e];
                double arrival = finish;
                if (link >= 0) {
                    arrival = (finish > link_free[link] ? finish : link_free[link]) + succ_s[e];
                    link_free[link] = arrival;
                }
                if (arrival > ready[target]) ready[target] = arrival;
                if (--waiting[target] == 0) {
                    i64 there = rank[target], at = tail[there]++;
                    double when = ready[target];
                    for (; at > head[there] && ready[pending[at - 1]] > when; at--) pending[at] = pending[at - 1];
                    pending[at] = target;
                    double soon = now_of[there] > when ? now_of[there] : when;
                    if (soon < key[there]) key[there] = soon;
                }
            }
            if (num_ready[r * 2] + num_ready[r * 2 + 1] > 0)
                key[r] = finish;
            else if (head[r] < tail[r])
                key[r] = finish > ready[pending[head[r]]] ? finish : ready[pending[head[r]]];
            else
                key[r] = INFINITY;
        }
        count[b] = ran;
        makespan[b] = ran == total ? longest : INFINITY;
    }
    free(bits), free(low), free(num_ready), free(place), free(stage_at), free(ready), free(link_free), free(waiting);
    free(pending), free(key), free(now_of), free(head), free(tail), free(done), free(last);
    return 0;
}
