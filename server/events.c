/* The queue from the transport's threads to the driver. */
#include <string.h>

#include "server/internal.h"

void events_init(events *q) {
    memset(q, 0, sizeof(*q));
    pthread_mutex_init(&q->mutex, NULL);
    tn_cond_init(&q->wake);
}

void events_release(events *q) {
    pthread_cond_destroy(&q->wake);
    pthread_mutex_destroy(&q->mutex);
}

void events_post(events *q, event *e) {
    pthread_mutex_lock(&q->mutex);
    e->next = NULL;
    if (q->tail != NULL)
        q->tail->next = e;
    else
        q->head = e;
    q->tail = e;
    pthread_cond_signal(&q->wake);
    pthread_mutex_unlock(&q->mutex);
}

void events_signal(events *q) {
    pthread_mutex_lock(&q->mutex);
    q->signals++;
    pthread_cond_signal(&q->wake);
    pthread_mutex_unlock(&q->mutex);
}

event *events_take(events *q, int64_t deadline, int *signals) {
    event *all;

    pthread_mutex_lock(&q->mutex);
    while (q->head == NULL && q->signals == *signals &&
           tn_cond_wait_until(&q->wake, &q->mutex, deadline) == TN_OK)
        continue;
    all = q->head;
    q->head = q->tail = NULL;
    *signals = q->signals;
    pthread_mutex_unlock(&q->mutex);
    return all;
}
