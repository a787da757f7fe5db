/* The clients that a round knows, by id: open addressing with linear probing. Removal shifts the followers
 * back (Knuth, The Art of Computer Programming, volume 3, section 6.4, Algorithm R), so that coming and
 * going leaves no marks behind. */
#include <stdlib.h>
#include <string.h>

#include "fed/internal.h"

#define FIRST_CAP 64

/* FNV-1a (Fowler, Noll, Vo). */
static size_t hash_of(const char *id) {
    uint64_t h = UINT64_C(0xcbf29ce484222325);

    for (; *id != '\0'; id++)
        h = (h ^ (uint8_t)*id) * UINT64_C(0x100000001b3);
    return (size_t)(h ^ h >> 32);
}

/* Where id is, or the free slot where it would go. cap > count, so there is one. */
static size_t probe(const tni_clients *t, const char *id) {
    size_t i = hash_of(id) & (t->cap - 1);

    while (t->slot[i] != NULL && strcmp(t->slot[i]->id, id) != 0)
        i = (i + 1) & (t->cap - 1);
    return i;
}

tni_client *tni_clients_find(const tni_clients *t, const char *id) {
    return t->count == 0 ? NULL : t->slot[probe(t, id)];
}

static bool grow(tni_clients *t) {
    tni_clients bigger = {.cap = t->cap == 0 ? FIRST_CAP : 2 * t->cap, .count = t->count};

    bigger.slot = calloc(bigger.cap, sizeof(tni_client *));
    if (bigger.slot == NULL)
        return false;
    for (size_t i = 0; i < t->cap; i++) {
        if (t->slot[i] != NULL)
            bigger.slot[probe(&bigger, t->slot[i]->id)] = t->slot[i];
    }
    free(t->slot);
    *t = bigger;
    return true;
}

tni_client *tni_clients_add(tni_clients *t, const char *id) {
    tni_client *c;

    if (2 * (t->count + 1) > t->cap && !grow(t))
        return NULL;
    c = calloc(1, sizeof(*c));
    if (c == NULL)
        return NULL;
    memcpy(c->id, id, strnlen(id, TN_ID_MAX)); /* zeroed: terminated */
    t->slot[probe(t, c->id)] = c;
    t->count++;
    return c;
}

void tni_clients_remove(tni_clients *t, tni_client *c) {
    size_t mask = t->cap - 1, hole = probe(t, c->id);

    for (size_t i = (hole + 1) & mask; t->slot[i] != NULL; i = (i + 1) & mask) {
        size_t home = hash_of(t->slot[i]->id) & mask;

        /* It may move into the hole unless its home lies behind the hole, on the way to where it is. */
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            t->slot[hole] = t->slot[i];
            hole = i;
        }
    }
    t->slot[hole] = NULL;
    t->count--;
    free(c);
}

void tni_clients_release(tni_clients *t) {
    for (size_t i = 0; i < t->cap; i++)
        free(t->slot[i]);
    free(t->slot);
    memset(t, 0, sizeof(*t));
}
