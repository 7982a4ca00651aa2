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

typedef struct {
    double time;
    int32_t item;
} event_t;

static int comes_first(event_t a, event_t b) { return a.time < b.time || (a.time == b.time && a.item < b.item); }

static void push_event(event_t *heap, int64_t size, event_t event) {
    int64_t at = size;
    for (; at > 0 && comes_first(event, heap[(at - 1) / 2]); at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
    heap[at] = event;
}

static event_t pop_event(event_t *heap, int64_t size) {
    const event_t least = heap[0], last = heap[--size];
    int64_t at = 0, child = 1;
    for (; child < size; at = child, child = 2 * at + 1) {
        if (child + 1 < size && comes_first(heap[child + 1], heap[child])) child++;
        if (!comes_first(heap[child], last)) break;
        heap[at] = heap[child];
    }
    heap[at] = last;
    return least;
}

static void push_rank(int32_t *heap, int64_t size, int32_t rank) {
    int64_t at = size;
    for (; at > 0 && heap[(at - 1) / 2] > rank; at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
    heap[at] = rank;
}

static int32_t pop_rank(int32_t *heap, int64_t size) {
    const int32_t least = heap[0], last = heap[--size];
    int64_t at = 0, child = 1;
    for (; child < size; at = child, child = 2 * at + 1) {
        if (child + 1 < size && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= last) break;
        heap[at] = heap[child];
    }
    heap[at] = last;
    return least;
}

/* dispatch_units for nodes that hold one stream each, without slots and new edges; every edge reads an end. */
int64_t dynamic_order(int64_t num_nodes, int64_t num_streams, const int32_t *stream_of_node, const int32_t *rank,
                      const double *latency, const int32_t *edge_ptr, const int32_t *edge_target,
                      double *restrict start, double *restrict end, int32_t *restrict order) {
    int32_t *node_of = malloc(num_nodes * sizeof(int32_t)), *num_missing = calloc(num_nodes, sizeof(int32_t));
    int32_t *candidate = malloc(num_nodes * sizeof(int32_t)), *waiting = malloc(num_nodes * sizeof(int32_t));
    event_t *event = malloc((num_nodes + num_streams) * sizeof(event_t));
    int64_t *waiting_ptr = calloc(num_streams + 1, sizeof(int64_t)), *num_waiting = calloc(num_streams, sizeof(int64_t));
    double *free_at = calloc(num_streams, sizeof(double));
    char *has_event = calloc(num_streams, 1);
    int64_t num_candidates = 0, num_events = 0, num_dispatched = 0;
    double now = 0.0;
    for (int64_t i = 0; i < num_nodes; i++) {
        start[i] = 0.0;
        node_of[rank[i]] = i;
        waiting_ptr[stream_of_node[i] + 1]++;
    }
    for (int64_t e = 0; e < edge_ptr[num_nodes]; e++) num_missing[edge_target[e]]++;
    for (int64_t s = 0; s < num_streams; s++) waiting_ptr[s + 1] += waiting_ptr[s];
    for (int64_t i = 0; i < num_nodes; i++)
        if (num_missing[node_of[i]] == 0) {
            const int32_t s = stream_of_node[node_of[i]];
            waiting[waiting_ptr[s] + num_waiting[s]++] = i;
        }
    for (int64_t s = 0; s < num_streams; s++)
        if (num_waiting[s] > 0)
            push_rank(candidate, num_candidates++, pop_rank(waiting + waiting_ptr[s], num_waiting[s]--));
    for (;;) {
        if (num_candidates == 0) {
            if (num_events == 0) break;
            now = event[0].time;
            while (num_events > 0 && event[0].time == now) {
                int32_t item = pop_event(event, num_events--).item;
                if (item < 0) {
                    const int64_t s = -1 - item;
                    has_event[s] = 0;
                    item = pop_rank(waiting + waiting_ptr[s], num_waiting[s]--);
                }
                push_rank(candidate, num_candidates++, item);
            }
        }
        const int32_t place = pop_rank(candidate, num_candidates--), node = node_of[place];
        const int64_t s = stream_of_node[node];
        if (free_at[s] > now) {
            push_rank(waiting + waiting_ptr[s], num_waiting[s]++, place);
        } else {
            const double last = now + latency[node];
            order[num_dispatched++] = node;
            start[node] = now;
            end[node] = last;
            free_at[s] = last;
            for (int64_t e = edge_ptr[node]; e < edge_ptr[node + 1]; e++) {
                const int32_t target = edge_target[e];
                if (last > start[target]) start[target] = last;
                if (--num_missing[target] > 0) continue;
                const int64_t t = stream_of_node[target];
                const double ready = start[target];
                if (ready > free_at[t]) {
                    if (ready > now) push_event(event, num_events++, (event_t){ready, rank[target]});
                    else push_rank(candidate, num_candidates++, rank[target]);
                } else if (free_at[t] > now) {
                    push_rank(waiting + waiting_ptr[t], num_waiting[t]++, rank[target]);
                    if (!has_event[t]) push_event(event, num_events++, (event_t){free_at[t], -1 - t});
                    has_event[t] = 1;
                } else {
                    push_rank(candidate, num_candidates++, rank[target]);
                }
            }
        }
        if (num_waiting[s] > 0 && !has_event[s]) {
            if (free_at[s] > now) {
                push_event(event, num_events++, (event_t){free_at[s], -1 - s});
                has_event[s] = 1;
            } else {
                push_rank(candidate, num_candidates++, pop_rank(waiting + waiting_ptr[s], num_waiting[s]--));
            }
        }
    }
    free(node_of), free(num_missing), free(candidate), free(waiting), free(event);
    free(waiting_ptr), free(num_waiting), free(free_at), free(has_event);
    return num_dispatched;
}
