/* Greedy dealing as semu.searcher.assignment.kernels.deal has it, without a limit of tokens: what C takes for it. */
#include <stdint.h>
#include <stdlib.h>

/* Every item, in order, to the bin that is lowest with it; of equals the one with fewer items, then the first. */
int64_t deal(int64_t n, int64_t bins, int64_t columns, const int64_t *order, const int64_t *load, int64_t *bin_of) {
    int64_t *held = calloc(bins * columns, sizeof *held), *count = calloc(bins, sizeof *count);
    for (int64_t place = 0; place < n; place++) {
        const int64_t item = order[place], *own = load + item * columns;
        int64_t best = 0, lowest = INT64_MAX;
        for (int64_t bin = 0; bin < bins; bin++) {
            int64_t height = 0;
            for (int64_t column = 0; column < columns; column++) {
                const int64_t with = held[bin * columns + column] + own[column];
                height = with > height ? with : height;
            }
            if (height < lowest || (height == lowest && count[bin] < count[best])) {
                best = bin;
                lowest = height;
            }
        }
        bin_of[item] = best;
        count[best]++;
        for (int64_t column = 0; column < columns; column++) held[best * columns + column] += own[column];
    }
    free(held);
    free(count);
    return n;
}
