/* What plain single-threaded C makes of the same work over the same arrays: the yardstick of engine.py.
 * The algorithms are those of semu's kernels of the same names, so that a ratio compares compilers and not ideas; arguments
 * are the kernel's arrays, behind their sizes. Where every edge reads the end of a unit and none has slots: no shipped
 * setup has others. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const double GRID_PER_S = 1099511627776.0; /* 2^40 */

/* ---- orders and times of units ---- */

int64_t forced_order(int64_t n, int64_t num_holds, int64_t num_added, int64_t num_streams, const int32_t *hold_ptr,
                     const int32_t *hold, const int32_t *edge_ptr, const int32_t *edge_target, const int32_t *edge_op,
                     const int32_t *edge_slot, const int32_t *new_source, const int32_t *new_target,
                     const int32_t *new_op, const int32_t *new_slot, int32_t *restrict order) {
    int32_t *waits = calloc(n, sizeof(int32_t)), *head = malloc(n * sizeof(int32_t));
    int32_t *behind = malloc(num_added * sizeof(int32_t)), *following = malloc(num_holds * sizeof(int32_t));
    int64_t *last_hold = malloc(num_streams * sizeof(int64_t));
    int64_t num_placed = 0, is_forced = 1;
    for (int64_t i = 0; i < n; i++) head[i] = -1;
    for (int64_t e = 0; e < edge_ptr[n]; e++) waits[edge_target[e]]++;
    for (int64_t e = 0; e < num_added; e++) {
        waits[new_target[e]]++;
        behind[e] = head[new_source[e]];
        head[new_source[e]] = e;
    }
    for (int64_t i = 0; i < n; i++)
        if (waits[i] == 0) order[num_placed++] = i;
    for (int64_t at = 0; at < num_placed; at++) {
        const int32_t unit = order[at];
        for (int64_t e = edge_ptr[unit]; e < edge_ptr[unit + 1]; e++)
            if (--waits[edge_target[e]] == 0) order[num_placed++] = edge_target[e];
        for (int64_t e = head[unit]; e >= 0; e = behind[e])
            if (--waits[new_target[e]] == 0) order[num_placed++] = new_target[e];
    }
    if (num_placed == n) {
        for (int64_t i = 0; i < num_holds; i++) following[i] = -1;
        for (int64_t s = 0; s < num_streams; s++) last_hold[s] = -1;
        for (int64_t place = 0; place < n; place++) {
            const int32_t unit = order[place];
            for (int64_t i = hold_ptr[unit]; i < hold_ptr[unit + 1]; i++) {
                if (last_hold[hold[i]] >= 0) following[last_hold[hold[i]]] = unit;
                last_hold[hold[i]] = i;
            }
        }
        for (int64_t unit = 0; unit < n; unit++)
            for (int64_t e = edge_ptr[unit]; e < edge_ptr[unit + 1]; e++)
                if (edge_op[e] < 0 && edge_slot[e] < 0)
                    for (int64_t i = hold_ptr[unit]; i < hold_ptr[unit + 1]; i++)
                        if (following[i] == edge_target[e]) following[i] = -1;
        for (int64_t e = 0; e < num_added; e++)
            if (new_op[e] < 0 && new_slot[e] < 0)
                for (int64_t i = hold_ptr[new_source[e]]; i < hold_ptr[new_source[e] + 1]; i++)
                    if (following[i] == new_target[e]) following[i] = -1;
        for (int64_t i = 0; i < num_holds; i++) is_forced &= following[i] < 0;
    }
    free(waits), free(head), free(behind), free(following), free(last_hold);
    return 2 * num_placed + (num_placed == n && is_forced);
}

int64_t replay_units(int64_t num_variants, int64_t n, int64_t num_added, int64_t num_streams, const int32_t *order,
                     const int32_t *hold_ptr, const int32_t *hold, const double *latency, const int32_t *edge_ptr,
                     const int32_t *edge_target, const int32_t *new_source, const int32_t *new_target,
                     double *restrict start, double *restrict end, uint8_t *touched) {
    int32_t *head = malloc(n * sizeof(int32_t)), *behind = malloc(num_added * sizeof(int32_t));
    double *restrict free_at = malloc(num_streams * sizeof(double));
    for (int64_t i = 0; i < n; i++) head[i] = -1;
    for (int64_t e = 0; e < num_added; e++) {
        behind[e] = head[new_source[e]];
        head[new_source[e]] = e;
    }
    memset(start, 0, num_variants * n * sizeof(double));
    memset(touched, 0, num_variants * n);
    for (int64_t variant = 0; variant < num_variants; variant++) {
        double *restrict starts = start + variant * n, *restrict ends = end + variant * n;
        const double *restrict latencies = latency + variant * n;
        for (int64_t s = 0; s < num_streams; s++) free_at[s] = 0.0;
        for (int64_t place = 0; place < n; place++) {
            const int64_t unit = order[place];
            double time = starts[unit];
            for (int64_t i = hold_ptr[unit]; i < hold_ptr[unit + 1]; i++)
                if (free_at[hold[i]] > time) time = free_at[hold[i]];
            const double last = time + latencies[unit];
            starts[unit] = time;
            ends[unit] = last;
            for (int64_t i = hold_ptr[unit]; i < hold_ptr[unit + 1]; i++) free_at[hold[i]] = last;
            for (int64_t e = edge_ptr[unit]; e < edge_ptr[unit + 1]; e++)
                if (last > starts[edge_target[e]]) starts[edge_target[e]] = last;
            for (int64_t e = head[unit]; e >= 0; e = behind[e])
                if (last > starts[new_target[e]]) starts[new_target[e]] = last;
        }
    }
    free(head), free(behind), free(free_at);
    return 0;
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

/* For units that hold one stream each, where no edge was added. */
int64_t dispatch_units(int64_t num_nodes, int64_t num_streams, const int32_t *stream_of_node, const int32_t *rank,
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

/* ---- latencies, stages, memory ---- */

static inline double seconds(double amount, double rate) {
    return amount == 0.0 ? 0.0 : rate == 0.0 ? INFINITY : amount / rate;
}

static inline double largest_of(double a, double b, double c) {
    const double larger = b > c ? b : c;
    return a > larger ? a : larger;
}

static inline double share(double term, double largest) { return term < largest ? term / largest : 1.0; }

static inline double quantize(double latency) { return rint(latency * GRID_PER_S) * (1 / GRID_PER_S); }

static inline double cube_root(double x) {
    double y = 0.6616 + x * (0.3818 - 0.0409 * x);
    for (int i = 0; i < 2; i++) {
        const double cube = y * y * y;
        y = y * (cube + 2.0 * x) / (2.0 * cube + x);
    }
    return y;
}

static inline double norm_3(double a, double b, double c) {
    const double largest = largest_of(a, b, c);
    a = share(a, largest), b = share(b, largest), c = share(c, largest);
    return largest * cube_root(a * a * a + b * b * b + c * c * c);
}

static inline double norm(double a, double b, double c, double p) {
    const double largest = largest_of(a, b, c);
    if (p == INFINITY) return largest;
    a = share(a, largest), b = share(b, largest), c = share(c, largest);
    return largest * pow(pow(a, p) + pow(b, p) + pow(c, p), 1.0 / p);
}

/* One loop per norm, so that each of them vectorises. */
#define LATENCIES(WHOLE) \
    for (int64_t i = 0; i < num_shapes; i++) { \
        const double a = seconds(f[i], rate_f), b = seconds(m[i], rate_m), c = seconds(w[i], rate_n); \
        out[i] = quantize(WHOLE); \
    }

int64_t roofline_latency(int64_t num_ops, int64_t num_shapes, const double *flop, const double *mem_bytes,
                         const double *net_bytes, const double *flop_per_s, const double *mem_bytes_per_s,
                         const double *net_bytes_per_s, const double *t0_s, const double *exponent,
                         const double *corner_s, double *restrict latency) {
    for (int64_t op = 0; op < num_ops; op++) {
        const double *f = flop + op * num_shapes, *m = mem_bytes + op * num_shapes, *w = net_bytes + op * num_shapes;
        const double rate_f = flop_per_s[op], rate_m = mem_bytes_per_s[op], rate_n = net_bytes_per_s[op];
        const double t0 = t0_s[op], p = exponent[op], corner = corner_s[op];
        double *restrict out = latency + op * num_shapes;
        if (corner > 0.0) LATENCIES(t0 + norm(a, b, c, p) + sqrt(corner * c))
        else if (p == INFINITY) LATENCIES(t0 + largest_of(a, b, c))
        else if (p == 1.0) LATENCIES(t0 + (a + b + c))
        else if (p == 2.0) LATENCIES(t0 + sqrt(a * a + b * b + c * c))
        else if (p == 3.0) LATENCIES(t0 + norm_3(a, b, c))
        else LATENCIES(t0 + norm(a, b, c, p))
    }
    return 0;
}

static int64_t earliest(int64_t num_streams, const int32_t *head, const int32_t *stop, const int32_t *order,
                        const double *time) {
    int64_t best = -1;
    for (int64_t s = 0; s < num_streams; s++)
        if (head[s] < stop[s] && (best < 0 || time[order[head[s]]] < time[order[head[best]]])) best = s;
    return best;
}

int64_t run_stage(int64_t num_shapes, int64_t num_rows, int64_t num_ops, int64_t num_size_rows, int64_t num_storages,
                  int64_t num_streams, const double *latency, const int32_t *row, const int32_t *pred_ptr,
                  const int32_t *pred, const int32_t *stream, const int32_t *order_ptr, const int32_t *order,
                  const int32_t *touch_ptr, const int32_t *touch, const int32_t *touches, const uint8_t *alive_before,
                  const uint8_t *alive_after, const int64_t *size, const int32_t *size_row,
                  double *stage_latency, double *exposed, int64_t *peak, int64_t *net, int32_t *peak_op) {
    double *start = malloc(2 * num_ops * sizeof(double)), *end = start + num_ops;
    double *free_at = malloc(num_streams * sizeof(double));
    int32_t *left = malloc(num_storages * sizeof(int32_t)), *head = malloc(2 * num_streams * sizeof(int32_t));
    int32_t *head_end = head + num_streams;
    uint8_t *alive = malloc(num_storages);
    for (int64_t b = 0; b < num_shapes; b++) {
        const double *lasts = latency + b * num_rows;
        const int64_t *sizes = size + b * num_size_rows;
        double *waits = exposed + b * num_streams;
        for (int64_t s = 0; s < num_streams; s++) free_at[s] = 0.0;
        for (int64_t op = 0; op < num_ops; op++) {
            const int64_t s = stream[op];
            double begin = free_at[s];
            int64_t blocker = -1;
            for (int64_t e = pred_ptr[op]; e < pred_ptr[op + 1]; e++)
                if (end[pred[e]] > begin) {
                    begin = end[pred[e]];
                    blocker = pred[e];
                }
            if (s == 0 && blocker >= 0) waits[stream[blocker]] += begin - free_at[0];
            start[op] = begin;
            end[op] = free_at[s] = begin + lasts[row[op]];
        }
        int64_t last = 0;
        for (int64_t s = 0; s < num_streams; s++)
            if (free_at[s] > free_at[last]) last = s;
        if (last != 0) waits[last] += free_at[last] - free_at[0];
        stage_latency[b] = free_at[last];

        int64_t live = 0, highest = 0, at = -1;
        memcpy(head, order_ptr, num_streams * sizeof(int32_t));
        memcpy(head_end, order_ptr, num_streams * sizeof(int32_t));
        memcpy(left, touches, num_storages * sizeof(int32_t));
        memcpy(alive, alive_before, num_storages);
        for (int64_t turn = 0; turn < 2 * num_ops; turn++) {
            const int64_t begins = earliest(num_streams, head, order_ptr + 1, order, start);
            const int64_t ends = earliest(num_streams, head_end, head, order, end);
            if (ends >= 0 && (begins < 0 || end[order[head_end[ends]]] <= start[order[head[begins]]])) {
                const int64_t op = order[head_end[ends]++];
                for (int64_t e = touch_ptr[op]; e < touch_ptr[op + 1]; e++) {
                    const int64_t storage = touch[e];
                    if (--left[storage] == 0 && !alive_after[storage]) {
                        alive[storage] = 0;
                        live -= sizes[size_row[storage]];
                    }
                }
            } else {
                const int64_t op = order[head[begins]++];
                for (int64_t e = touch_ptr[op]; e < touch_ptr[op + 1]; e++) {
                    const int64_t storage = touch[e];
                    if (!alive[storage]) {
                        alive[storage] = 1;
                        live += sizes[size_row[storage]];
                    }
                }
                if (live > highest) {
                    highest = live;
                    at = op;
                }
            }
        }
        for (int64_t storage = 0; storage < num_storages; storage++)
            if (touches[storage] == 0 && alive_before[storage] && !alive_after[storage])
                live -= sizes[size_row[storage]];
        peak[b] = highest, net[b] = live, peak_op[b] = at;
    }
    free(start), free(free_at), free(left), free(head), free(alive);
    return 0;
}

int64_t run_segment(int64_t num_ops, int64_t num_shapes, const double *latency, const int32_t *row,
                    const int32_t *stream, const int64_t *size, const int32_t *event_row, const int32_t *come,
                    const int32_t *gone, double *total, double *exposed, int64_t *peak, int64_t *net,
                    int32_t *peak_op) {
    for (int64_t first = 0; first < num_shapes; first += 1024) {
        const int64_t count = first + 1024 < num_shapes ? 1024 : num_shapes - first;
        double *restrict time = total + first;
        int64_t *restrict live = net + first, *restrict highest = peak + first;
        int32_t *restrict at = peak_op + first;
        int64_t event = 0;
        for (int64_t op = 0; op < num_ops; op++) {
            const double *lasts = latency + row[op] * num_shapes + first;
            double *restrict waits = exposed + stream[op] * num_shapes + first;
            for (int64_t b = 0; b < count; b++) time[b] += lasts[b];
            if (stream[op] != 0)
                for (int64_t b = 0; b < count; b++) waits[b] += lasts[b];
            for (; event < come[op]; event++) {
                const int64_t *more = size + event_row[event] * num_shapes + first;
                for (int64_t b = 0; b < count; b++) live[b] += more[b];
            }
            for (int64_t b = 0; b < count; b++)
                if (op == 0 || live[b] > highest[b]) {
                    highest[b] = live[b];
                    at[b] = op;
                }
            for (; event < gone[op]; event++) {
                const int64_t *less = size + event_row[event] * num_shapes + first;
                for (int64_t b = 0; b < count; b++) live[b] -= less[b];
            }
        }
    }
    return 0;
}

int64_t pipeline_summits(int64_t num_ranks, int64_t num_rows, int64_t num_nodes, int64_t num_stages, int64_t num_events,
                         const int64_t *stage_ptr, const double *start, const double *end, const int64_t *net,
                         const int64_t *peak, const int64_t *event_ptr, const double *time, const int64_t *size,
                         int64_t *restrict low, int64_t *restrict high, int64_t *restrict between,
                         int64_t *restrict best) {
    for (int64_t rank = 0; rank < num_ranks; rank++) {
        const int64_t first = stage_ptr[rank], stop = stage_ptr[rank + 1], last_event = event_ptr[rank + 1];
        int64_t top = -((int64_t)1 << 62), top_row = 0, top_stage = -1;
        for (int64_t row = 0; row < num_rows; row++) {
            const double *starts = start + row * num_nodes, *ends = end + row * num_nodes;
            const double *times = time + row * num_events;
            const int64_t *sizes = size + row * num_events;
            int64_t level = 0, below = 0, idle = 0, event = event_ptr[rank];
            for (int64_t stage = first; stage < stop; stage++) {
                for (; event < last_event && times[event] <= starts[stage]; event++) {
                    level += sizes[event];
                    if ((stage == first || times[event] >= ends[stage - 1]) && times[event] < starts[stage]
                        && below + level > idle)
                        idle = below + level;
                }
                int64_t highest = level, lowest = level, there = level;
                for (int64_t ahead = event; ahead < last_event && times[ahead] < ends[stage]; ahead++) {
                    there += sizes[ahead];
                    if (there > highest) highest = there;
                    if (there < lowest) lowest = there;
                }
                const int64_t place = row * num_stages + stage, bound = below + lowest + peak[place];
                low[place] = bound;
                high[place] = below + highest + peak[place];
                below += net[place];
                if (bound > top) top = bound, top_row = row, top_stage = stage;
            }
            for (; event < last_event; event++) {
                level += sizes[event];
                if ((stop == first || times[event] >= ends[stop - 1]) && below + level > idle) idle = below + level;
            }
            between[row * num_ranks + rank] = idle;
        }
        if (stop == first) {
            top = 0, top_row = 0, top_stage = -1;
        } else {
            if (top < 0) top = 0;
            for (int64_t row = 0; row < num_rows; row++)
                if (between[row * num_ranks + rank] > top)
                    top = between[row * num_ranks + rank], top_row = row, top_stage = -1;
        }
        best[3 * rank] = top, best[3 * rank + 1] = top_row, best[3 * rank + 2] = top_stage;
    }
    return 0;
}
