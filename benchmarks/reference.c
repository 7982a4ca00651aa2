/* What plain single-threaded C makes of the same work over the same arrays: the yardstick of engine.py.
 * The algorithms are those of semu/engine/kernels.py, so that a ratio compares compilers and not ideas. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

static const double GRID_PER_S = 1099511627776.0; /* 2^40 */

static int64_t stream_of(const int64_t *stream_ptr, int64_t num_streams, int64_t node) {
    int64_t low = 0, high = num_streams;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (stream_ptr[middle] <= node) low = middle;
        else high = middle;
    }
    return low;
}

int64_t fixed_order_roofline_times(int64_t num_streams, const int64_t *stream_ptr, const int32_t *pred_ptr,
                                   const int32_t *pred, const float *flop, const float *mem_bytes,
                                   const float *net_bytes, const double *s_per_flop, const double *s_per_mem_byte,
                                   const double *s_per_net_byte,
                                   double *restrict start, double *restrict end, int64_t *restrict cursor) {
    const int64_t num_nodes = stream_ptr[num_streams];
    int64_t *runnable = malloc(4 * num_streams * sizeof(int64_t));
    int64_t *awaited = runnable + num_streams;
    int64_t *first_waiter = awaited + num_streams, *next_waiter = first_waiter + num_streams;
    int64_t num_runnable = num_streams, num_timed = 0;
    for (int64_t i = 0; i < num_nodes; i++) end[i] = INFINITY;
    for (int64_t s = 0; s < num_streams; s++) {
        first_waiter[s] = -1;
        cursor[s] = stream_ptr[s];
        runnable[s] = num_streams - 1 - s;
    }
    while (num_runnable > 0) {
        const int64_t s = runnable[--num_runnable], first = stream_ptr[s], stop = stream_ptr[s + 1];
        const double per_flop = s_per_flop[s], per_mem = s_per_mem_byte[s], per_net = s_per_net_byte[s];
        int64_t node = cursor[s], edge = pred_ptr[node];
        double free_at = node > first ? end[node - 1] : 0.0;
        while (node < stop) {
            const int64_t last_edge = pred_ptr[node + 1];
            double time = free_at;
            for (; edge < last_edge; edge++) {
                const int64_t other = pred[edge];
                if (other >= first && other < node) continue;
                const double other_end = end[other];
                if (other_end > time) time = other_end;
            }
            if (time == INFINITY) break;
            start[node] = time;
            double latency = flop[node] * per_flop;
            const double mem_s = mem_bytes[node] * per_mem, net_s = net_bytes[node] * per_net;
            if (mem_s > latency) latency = mem_s;
            if (net_s > latency) latency = net_s;
            free_at = time + rint(latency * GRID_PER_S) * (1 / GRID_PER_S);
            end[node++] = free_at;
        }
        if (node < stop)
            for (int64_t i = pred_ptr[node]; i < pred_ptr[node + 1]; i++)
                if (end[pred[i]] == INFINITY) {
                    const int64_t owner = stream_of(stream_ptr, num_streams, pred[i]);
                    awaited[s] = pred[i];
                    next_waiter[s] = first_waiter[owner];
                    first_waiter[owner] = s;
                    break;
                }
        num_timed += node - cursor[s];
        if (node > cursor[s]) {
            int64_t kept = -1, following;
            cursor[s] = node;
            for (int64_t waiter = first_waiter[s]; waiter >= 0; waiter = following) {
                following = next_waiter[waiter];
                if (awaited[waiter] < node) {
                    runnable[num_runnable++] = waiter;
                } else {
                    next_waiter[waiter] = kept;
                    kept = waiter;
                }
            }
            first_waiter[s] = kept;
        }
    }
    free(runnable);
    return num_timed;
}

void ordered_peak_memory(int64_t num_devices, const int64_t *device_ptr, const int64_t *storage_ptr,
                         const int64_t *size_bytes, const int32_t *writer, const int32_t *reader_ptr,
                         const int32_t *reader, int64_t *peak_bytes, int64_t *peak_node) {
    int64_t longest = 0;
    for (int64_t d = 0; d < num_devices; d++)
        if (device_ptr[d + 1] - device_ptr[d] > longest) longest = device_ptr[d + 1] - device_ptr[d];
    int64_t *restrict change = calloc(longest + 1, sizeof(int64_t));
    for (int64_t d = 0; d < num_devices; d++) {
        const int64_t base = device_ptr[d], num_nodes = device_ptr[d + 1] - base;
        for (int64_t s = storage_ptr[d]; s < storage_ptr[d + 1]; s++) {
            int64_t last = writer[s];
            for (int64_t i = reader_ptr[s]; i < reader_ptr[s + 1]; i++)
                if (reader[i] > last) last = reader[i];
            change[writer[s] - base] += size_bytes[s];
            change[last - base + 1] -= size_bytes[s];
        }
        int64_t live = 0, peak = -1, at = -1;
        for (int64_t i = 0; i < num_nodes; i++) {
            live += change[i];
            change[i] = 0;
            if (live > peak) {
                peak = live;
                at = i;
            }
        }
        change[num_nodes] = 0;
        peak_bytes[d] = peak > 0 ? peak : 0;
        peak_node[d] = at >= 0 ? base + at : -1;
    }
    free(change);
}
