/* Settings as rows of a table: a flag, a key of an INI file (inih), a default and a sentence of help, all
 * from one row.
 *
 * A later source wins: defaults, then --config FILE, then flags. Unknown keys and flags, keys in the wrong
 * section, values out of range, a value given twice and flags not built yet are errors that name the
 * thing, the place (flag, or file and line) and the remedy. Wrong usage is TN_EINVAL, what is not built
 * TN_EUNSUPPORTED. For the main thread at start (getopt has global state). */
#ifndef TN_CORE_CONFIG_H
#define TN_CORE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "core/error.h"

typedef enum tn_cfg_type {
    TN_CFG_STR,       /* char * (owned by the settings; NULL when unset) */
    TN_CFG_LIST,      /* tn_cfg_list: a repeatable string; a later source replaces all that an earlier gave */
    TN_CFG_INT,       /* int64_t, lo..hi */
    TN_CFG_FLOAT,     /* double, lo..hi, finite */
    TN_CFG_BOOL,      /* bool; as a flag it takes no value, in a file yes/no/true/false/1/0 */
    TN_CFG_NOT_BUILT, /* named in the contract, not built: refused by name, with `help` as the reason */
} tn_cfg_type;

typedef struct tn_cfg_list {
    char **item;
    size_t count;
} tn_cfg_list;

typedef struct tn_cfg_row {
    const char *name;    /* "min-clients": --min-clients N, and the file's key min-clients or min_clients */
    const char *section; /* its INI section; NULL: before the first one. Also the heading in --help */
    const char *arg;     /* "N", "FILE", "SECONDS"; NULL for a bool */
    const char *help;
    const char *preset; /* default as text, NULL for unset (zero) */
    tn_cfg_type type;
    size_t offset; /* of the field in the settings struct; none for NOT_BUILT */
    double lo, hi; /* inclusive, for INT (within 2^53) and FLOAT */
} tn_cfg_row;

/* Sets the field of every row to its default, or to zero. What was there is not released: call this first. */
TN_API tn_code tn_cfg_defaults(const tn_cfg_row *rows, size_t n, void *settings, tn_err *err);

/* An INI file of at most 1 MiB: [section], key = value (or key: value), comments after ; and after # at
 * the start of a line. On failure the settings hold a part of it and can still be released. */
TN_API tn_code tn_cfg_file(const tn_cfg_row *rows, size_t n, void *settings, const char *path, tn_err *err);

/* argv by getopt_long (both --name value and --name=value; no abbreviations, no short flags). A --config
 * FILE flag in it is read first, so that flags win whatever their order (the row "config", a STR, must
 * then be in the table). --help and --version are not handled here: give bool rows for them. Positional
 * arguments are errors unless positional != NULL: then they are listed there, views into argv
 * (free(positional->item)). */
TN_API tn_code tn_cfg_argv(const tn_cfg_row *rows, size_t n, void *settings, int argc, char **argv,
                           tn_cfg_list *positional, tn_err *err);

/* The rows under their section's heading, in the table's order, with defaults, wrapped at 100 columns. */
TN_API void tn_cfg_help(const tn_cfg_row *rows, size_t n, FILE *to);

/* Frees what the settings own. Safe twice. */
TN_API void tn_cfg_release(const tn_cfg_row *rows, size_t n, void *settings);

#endif
