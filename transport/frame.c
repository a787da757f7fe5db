/* Frames: 32 bytes of header in front of each body. conn.c puts the header and the body into one operation. */
#include <assert.h>
#include <string.h>

#include "core/wire.h"
#include "transport/internal.h"

static const uint8_t magic[4] = {'T', 'N', '0', '1'};
enum { FRAME_VERSION = 1 };

void tni_frame_encode(uint8_t to[TN_FRAME_BYTES], const tn_frame *f) {
    tn_wr w = tn_wr_fixed(to, TN_FRAME_BYTES);

    tn_wr_bytes(&w, magic, sizeof(magic));
    tn_wr_u8(&w, FRAME_VERSION);
    tn_wr_u8(&w, f->type);
    tn_wr_u16(&w, f->flags);
    tn_wr_u32(&w, f->tag);
    tn_wr_u32(&w, 0);
    tn_wr_u64(&w, f->id);
    tn_wr_u64(&w, f->size);
    assert(w.fail == TN_OK && w.len == TN_FRAME_BYTES);
}

tn_code tni_frame_decode(tn_frame *f, const uint8_t from[TN_FRAME_BYTES], uint64_t max_size, tn_err *err) {
    tn_rd r = tn_rd_init(from, TN_FRAME_BYTES);
    const uint8_t *m = tn_rd_take(&r, sizeof(magic));
    uint8_t version = tn_rd_u8(&r);
    uint32_t reserved;

    f->type = tn_rd_u8(&r);
    f->flags = tn_rd_u16(&r);
    f->tag = tn_rd_u32(&r);
    reserved = tn_rd_u32(&r);
    f->id = tn_rd_u64(&r);
    f->size = tn_rd_u64(&r);
    assert(tn_rd_end(&r) == TN_OK);
    if (memcmp(m, magic, sizeof(magic)) != 0)
        return tn_fail(err, TN_EPROTO, "what arrived is no frame of this protocol (it begins with %02x %02x %02x %02x)",
                       m[0], m[1], m[2], m[3]);
    if (version != FRAME_VERSION)
        return tn_fail(err, TN_EVERSION, "the other end speaks version %u of the framing, this end version %d: install the "
                       "same release at both ends", version, FRAME_VERSION);
    if (reserved != 0)
        return tn_fail(err, TN_EPROTO, "a frame whose reserved field is not zero");
    if (f->size > max_size)
        return tn_fail(err, TN_EPROTO, "a frame of type %u announces %llu bytes, more than the %llu allowed here", f->type,
                       (unsigned long long)f->size, (unsigned long long)max_size);
    return TN_OK;
}

void tn_frame_send(tn_tx_conn *c, const tn_frame *f, const tn_iov *body, int n, int64_t timeout_ns, tn_tx_done fn,
                   void *arg) {
    tni_op_start(c, TNI_SEND, f, NULL, 0, body, n, timeout_ns, fn, arg);
}

void tn_frame_recv(tn_tx_conn *c, tn_frame *f, uint64_t max_size, int64_t timeout_ns, tn_tx_done fn, void *arg) {
    tni_op_start(c, TNI_RECV, NULL, f, max_size, NULL, 0, timeout_ns, fn, arg);
}
