/* Settings: one routine turns a text into a row's field, whatever source the text came from; getopt_long
 * and inih only find the texts. */
#include "core/config.h"

#include <getopt.h>
#include <ini.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/file.h"

#define MAX_FILE (1024u * 1024)
#define HELP_COLUMNS 100

/* A source being read: a file, the flags, or the defaults. */
typedef struct source {
    const tn_cfg_row *rows;
    size_t n;
    void *settings;
    bool *seen; /* by row: this source has given it */
} source;

static tn_code source_init(source *s, const tn_cfg_row *rows, size_t n, void *settings, tn_err *err) {
    s->rows = rows;
    s->n = n;
    s->settings = settings;
    s->seen = calloc(n + 1, sizeof(*s->seen));
    return s->seen != NULL ? TN_OK : tn_fail(err, TN_ENOMEM, "out of memory for %zu settings", n);
}

static void *field_of(const tn_cfg_row *row, void *settings) { return (char *)settings + row->offset; }

static void release_list(tn_cfg_list *list) {
    for (size_t i = 0; i < list->count; i++)
        free(list->item[i]);
    free(list->item);
    list->item = NULL;
    list->count = 0;
}

static void clear_field(const tn_cfg_row *row, void *settings) {
    void *field = field_of(row, settings);

    if (row->type == TN_CFG_STR) {
        char **s = field;

        free(*s);
        *s = NULL;
    } else if (row->type == TN_CFG_LIST) {
        release_list(field);
    }
}

/* ---- From text to a field. `where` is "--rounds" or "server.ini:12: rounds". ---- */

static tn_code append(tn_cfg_list *list, char *item) {
    char **grown = realloc(list->item, (list->count + 1) * sizeof(*grown));

    if (grown == NULL)
        return TN_ENOMEM;
    list->item = grown;
    list->item[list->count++] = item;
    return TN_OK;
}

static tn_code set_text(const tn_cfg_row *row, void *field, const char *text, const char *where, tn_err *err) {
    char *copy;
    tn_code code = TN_OK;

    if (text[0] == '\0')
        return tn_fail(err, TN_EINVAL, "%s: the value is empty; it takes %s", where, row->arg);
    copy = strdup(text);
    if (copy == NULL) {
        code = TN_ENOMEM;
    } else if (row->type == TN_CFG_LIST) {
        code = append(field, copy);
    } else {
        char **s = field;

        free(*s);
        *s = copy;
    }
    if (code != TN_OK) {
        free(copy);
        return tn_fail(err, code, "%s: out of memory", where);
    }
    return TN_OK;
}

static bool starts_number(const char *text) {
    return (text[0] >= '0' && text[0] <= '9') || text[0] == '-' || text[0] == '+' || text[0] == '.';
}

static tn_code out_of_range(const tn_cfg_row *row, const char *text, const char *where, tn_err *err) {
    return tn_fail(err, TN_EINVAL, "%s: %s is out of range; %.15g to %.15g are allowed", where, text, row->lo,
                   row->hi);
}

static tn_code set_int(const tn_cfg_row *row, int64_t *field, const char *text, const char *where,
                       tn_err *err) {
    char *end = NULL;
    long long v;

    v = strtoll(text, &end, 10); /* what does not fit saturates, beyond every range of ours */
    if (!starts_number(text) || end == text || *end != '\0')
        return tn_fail(err, TN_EINVAL, "%s: \"%.64s\" is not a whole number", where, text);
    if ((double)v < row->lo || (double)v > row->hi)
        return out_of_range(row, text, where, err);
    *field = v;
    return TN_OK;
}

static tn_code set_float(const tn_cfg_row *row, double *field, const char *text, const char *where,
                         tn_err *err) {
    char *end = NULL;
    double v = strtod(text, &end);

    if (!starts_number(text) || end == text || *end != '\0' || isnan(v))
        return tn_fail(err, TN_EINVAL, "%s: \"%.64s\" is not a number", where, text);
    if (!isfinite(v) || v < row->lo || v > row->hi)
        return out_of_range(row, text, where, err);
    *field = v;
    return TN_OK;
}

static tn_code set_bool(bool *field, const char *text, const char *where, tn_err *err) {
    static const char *const words[] = {"no", "yes", "false", "true", "0", "1"};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strcasecmp(text, words[i]) == 0) {
            *field = i % 2 == 1;
            return TN_OK;
        }
    }
    return tn_fail(err, TN_EINVAL, "%s: \"%.64s\" is neither yes nor no", where, text);
}

static tn_code assign(source *s, size_t i, const char *text, const char *where, tn_err *err) {
    const tn_cfg_row *row = &s->rows[i];
    void *field = field_of(row, s->settings);
    bool again = s->seen[i];

    s->seen[i] = true;
    if (row->type == TN_CFG_NOT_BUILT)
        return tn_fail(err, TN_EUNSUPPORTED, "%s is not built yet: %s", where, row->help);
    if (again && row->type != TN_CFG_LIST)
        return tn_fail(err, TN_EINVAL, "%s is given twice; give it once", where);
    switch (row->type) {
    case TN_CFG_LIST:
        if (!again)
            release_list(field);
        return set_text(row, field, text, where, err);
    case TN_CFG_STR:
        return set_text(row, field, text, where, err);
    case TN_CFG_INT:
        return set_int(row, field, text, where, err);
    case TN_CFG_FLOAT:
        return set_float(row, field, text, where, err);
    case TN_CFG_BOOL:
        return set_bool(field, text, where, err);
    case TN_CFG_NOT_BUILT:
        break;
    }
    return tn_fail(err, TN_EINTERNAL, "%s: a row of an unknown type", where);
}

/* ---- Defaults ---- */

static void zero_field(const tn_cfg_row *row, void *settings) {
    void *field = field_of(row, settings);

    switch (row->type) {
    case TN_CFG_STR:
        *(char **)field = NULL;
        break;
    case TN_CFG_LIST:
        memset(field, 0, sizeof(tn_cfg_list));
        break;
    case TN_CFG_INT:
        *(int64_t *)field = 0;
        break;
    case TN_CFG_FLOAT:
        *(double *)field = 0;
        break;
    case TN_CFG_BOOL:
        *(bool *)field = false;
        break;
    case TN_CFG_NOT_BUILT:
        break;
    }
}

tn_code tn_cfg_defaults(const tn_cfg_row *rows, size_t n, void *settings, tn_err *err) {
    source s;
    tn_code code;

    for (size_t i = 0; i < n; i++)
        zero_field(&rows[i], settings);
    if ((code = source_init(&s, rows, n, settings, err)) != TN_OK)
        return code;
    for (size_t i = 0; i < n && code == TN_OK; i++) {
        if (rows[i].preset != NULL && rows[i].type != TN_CFG_NOT_BUILT) {
            char where[96];

            snprintf(where, sizeof(where), "default of --%.64s", rows[i].name);
            code = assign(&s, i, rows[i].preset, where, err);
        }
    }
    free(s.seen);
    if (code != TN_OK)
        tn_cfg_release(rows, n, settings);
    return code;
}

void tn_cfg_release(const tn_cfg_row *rows, size_t n, void *settings) {
    for (size_t i = 0; i < n; i++)
        clear_field(&rows[i], settings);
}

/* ---- Files ---- */

typedef struct ini_state {
    source src;
    const char *path;
    const char *text; /* what is left of the file, terminated */
    int line;         /* the one read last, from 1 */
    tn_err *err;
    tn_code code; /* the first failure of ours: inih goes on behind an error, we do not */
    int failed;   /* its line */
} ini_state;

/* Hands inih one line. inih would take the rest of an over-long line for another line: that is refused here. */
static char *next_line(char *to, int cap, void *arg) {
    ini_state *s = arg;
    const char *end;
    size_t n;

    if (s->code != TN_OK || s->text[0] == '\0')
        return NULL;
    s->line++;
    end = strchr(s->text, '\n');
    n = end != NULL ? (size_t)(end - s->text) + 1 : strlen(s->text);
    if (n >= (size_t)cap) {
        s->failed = s->line;
        s->code = tn_fail(s->err, TN_EINVAL, "%s:%d: the line has %zu bytes; at most %d are read", s->path,
                          s->line, n, cap - 2);
        return NULL;
    }
    memcpy(to, s->text, n);
    to[n] = '\0';
    s->text += n;
    return to;
}

/* name as the file has it, with _ for - allowed; n when there is no such row. */
static size_t find_key(const tn_cfg_row *rows, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++) {
        const char *a = rows[i].name, *b = name;

        while (*a != '\0' && (*a == *b || (*a == '-' && *b == '_'))) {
            a++;
            b++;
        }
        if (*a == '\0' && *b == '\0')
            return i;
    }
    return n;
}

static tn_code apply_key(ini_state *s, const char *section, const char *name, const char *value) {
    const source *src = &s->src;
    size_t i = find_key(src->rows, src->n, name);
    const char *home;
    char where[320];

    snprintf(where, sizeof(where), "%.200s:%d: %.64s", s->path, s->line, name);
    if (i == src->n)
        return tn_fail(s->err, TN_EINVAL, "%s: there is no such key; the names are those of the flags", where);
    home = src->rows[i].section != NULL ? src->rows[i].section : "";
    if (strcmp(src->rows[i].name, "config") == 0)
        return tn_fail(s->err, TN_EINVAL, "%s: a file cannot name another one; use the flag", where);
    if (strcmp(section, home) != 0 && home[0] == '\0')
        return tn_fail(s->err, TN_EINVAL, "%s belongs before the first section, not in [%.64s]", where,
                       section);
    if (strcmp(section, home) != 0 && section[0] == '\0')
        return tn_fail(s->err, TN_EINVAL, "%s belongs in [%s], not before the first section", where, home);
    if (strcmp(section, home) != 0)
        return tn_fail(s->err, TN_EINVAL, "%s belongs in [%s], not in [%.64s]", where, home, section);
    return assign(&s->src, i, value, where, s->err);
}

static int on_key(void *arg, const char *section, const char *name, const char *value) {
    ini_state *s = arg;

    if (s->code == TN_OK) {
        s->code = apply_key(s, section, name, value != NULL ? value : "");
        s->failed = s->line;
    }
    return s->code == TN_OK;
}

tn_code tn_cfg_file(const tn_cfg_row *rows, size_t n, void *settings, const char *path, tn_err *err) {
    ini_state s = {.path = path, .err = err};
    uint8_t *text = NULL;
    size_t size;
    int line;
    tn_code code = source_init(&s.src, rows, n, settings, err);

    if (code == TN_OK)
        code = tn_file_read(path, MAX_FILE, &text, &size, err);
    if (code != TN_OK)
        goto out;
    if (memchr(text, '\0', size) != NULL) {
        code = tn_fail(err, TN_EINVAL, "%s is not text: it has a NUL byte in it", path);
        goto out;
    }
    s.text = (const char *)text;
    line = ini_parse_stream(next_line, &s, on_key, &s);
    code = s.code;
    if (line > 0 && (code == TN_OK || line < s.failed)) /* inih tells the first line that it or we refused */
        code = tn_fail(err, TN_EINVAL, "%s:%d: neither \"key = value\" nor [section] nor a comment", path,
                       line);
    else if (code == TN_OK && line < 0)
        code = tn_fail(err, TN_ENOMEM, "%s: out of memory", path);
out:
    free(text);
    free(s.src.seen);
    return code;
}

/* ---- Flags ---- */

#define FIRST_FLAG 256 /* getopt's value of row 0: above every character */

typedef struct flag { /* one occurrence */
    size_t row;
    const char *value;
} flag;

static void make_options(const tn_cfg_row *rows, size_t n, struct option *options) {
    for (size_t i = 0; i < n; i++) {
        options[i].name = rows[i].name;
        options[i].has_arg = rows[i].type == TN_CFG_NOT_BUILT ? optional_argument /* it is refused either way */
                             : rows[i].type == TN_CFG_BOOL    ? no_argument
                                                              : required_argument;
        options[i].val = FIRST_FLAG + (int)i;
    }
}

/* What getopt_long found at argv[at] into *f. */
static tn_code one_flag(const tn_cfg_row *rows, int found, int at, char **argv, flag *f, tn_err *err) {
    size_t len = strcspn(argv[at], "=");
    int named = found >= FIRST_FLAG ? found : optopt; /* on '?' and ':' optopt is the flag, 0 when unknown */
    const tn_cfg_row *row = named >= FIRST_FLAG ? &rows[named - FIRST_FLAG] : NULL;

    /* getopt_long would take any unique beginning of a name. */
    if (row == NULL || len < 3 || strlen(row->name) != len - 2 ||
        strncmp(argv[at] + 2, row->name, len - 2) != 0)
        return tn_fail(err, TN_EINVAL, "unknown flag %.*s; see --help", (int)(len < 64 ? len : 64), argv[at]);
    if (found == '?')
        return tn_fail(err, TN_EINVAL, "--%s takes no value; give the flag alone", row->name);
    if (found == ':')
        return tn_fail(err, TN_EINVAL, "--%s needs a value: --%s %s", row->name, row->name, row->arg);
    f->row = (size_t)(named - FIRST_FLAG);
    f->value = row->type == TN_CFG_BOOL ? "yes" : optarg;
    return TN_OK;
}

static tn_code one_positional(tn_cfg_list *positional, char *arg, tn_err *err) {
    if (positional == NULL)
        return tn_fail(err, TN_EINVAL, "unexpected argument \"%.64s\"; flags begin with --", arg);
    if (append(positional, arg) != TN_OK)
        return tn_fail(err, TN_ENOMEM, "out of memory for the arguments");
    return TN_OK;
}

/* Lists the flags of argv, in their order. flags has room for argc. */
static tn_code collect(const tn_cfg_row *rows, const struct option *options, int argc, char **argv, flag *flags,
                       size_t *count, tn_cfg_list *positional, tn_err *err) {
    tn_code code = TN_OK;
    int at = 1, found;

    optind = 0; /* GNU: start afresh */
    opterr = 0;
    /* "-": positional arguments come in their place, as 1, and argv keeps its order. ":": a missing value
     * is ':'. */
    while (code == TN_OK && (found = getopt_long(argc, argv, "-:", options, NULL)) != -1) {
        if (found == 1) {
            code = one_positional(positional, optarg, err);
        } else {
            code = one_flag(rows, found, at, argv, &flags[*count], err);
            /* Now, before its value is taken for an argument that nobody expects. */
            if (code == TN_OK && rows[flags[*count].row].type == TN_CFG_NOT_BUILT)
                code = tn_fail(err, TN_EUNSUPPORTED, "--%s is not built yet: %s", rows[flags[*count].row].name,
                               rows[flags[*count].row].help);
            *count += 1;
        }
        at = optind;
    }
    for (int i = optind; i < argc && code == TN_OK; i++) /* behind "--" */
        code = one_positional(positional, argv[i], err);
    return code;
}

tn_code tn_cfg_argv(const tn_cfg_row *rows, size_t n, void *settings, int argc, char **argv,
                    tn_cfg_list *positional, tn_err *err) {
    struct option *options = calloc(n + 1, sizeof(*options));
    flag *flags = calloc((size_t)argc + 1, sizeof(*flags));
    size_t count = 0;
    source s = {.seen = NULL};
    tn_code code;

    if (positional != NULL)
        memset(positional, 0, sizeof(*positional));
    if (options == NULL || flags == NULL) {
        code = tn_fail(err, TN_ENOMEM, "out of memory for %zu settings", n);
        goto out;
    }
    make_options(rows, n, options);
    if ((code = source_init(&s, rows, n, settings, err)) != TN_OK ||
        (code = collect(rows, options, argc, argv, flags, &count, positional, err)) != TN_OK)
        goto out;
    for (size_t i = 0; i < count && code == TN_OK; i++) {
        if (strcmp(rows[flags[i].row].name, "config") == 0)
            code = tn_cfg_file(rows, n, settings, flags[i].value, err);
    }
    for (size_t i = 0; i < count && code == TN_OK; i++) {
        char where[96];

        snprintf(where, sizeof(where), "--%.64s", rows[flags[i].row].name);
        code = assign(&s, flags[i].row, flags[i].value, where, err);
    }
out:
    if (code != TN_OK && positional != NULL) {
        free(positional->item);
        memset(positional, 0, sizeof(*positional));
    }
    free(s.seen);
    free(flags);
    free(options);
    return code;
}

/* ---- Help ---- */

/* Words of `text` from column `from` on; what would pass HELP_COLUMNS goes on below, at the same column. */
static void print_wrapped(FILE *to, const char *text, int from) {
    int column = from;

    while (*text != '\0') {
        int n = (int)strcspn(text, " ");

        if (column > from && column + 1 + n > HELP_COLUMNS) {
            fprintf(to, "\n%*s", from, "");
            column = from;
        } else if (column > from) {
            fputc(' ', to);
            column++;
        }
        fprintf(to, "%.*s", n, text);
        column += n;
        text += n;
        text += strspn(text, " ");
    }
    fputc('\n', to);
}

static int flag_width(const tn_cfg_row *row) {
    return (int)(strlen("  --") + strlen(row->name) + (row->arg != NULL ? 1 + strlen(row->arg) : 0));
}

static void print_row(FILE *to, const tn_cfg_row *row, int from) {
    const char *repeatable = row->type == TN_CFG_LIST ? " (repeatable)" : "";
    char text[1024];

    if (row->type == TN_CFG_NOT_BUILT)
        snprintf(text, sizeof(text), "(not built yet) %s", row->help);
    else if (row->preset != NULL)
        snprintf(text, sizeof(text), "%s%s (default: %s)", row->help, repeatable, row->preset);
    else
        snprintf(text, sizeof(text), "%s%s", row->help, repeatable);
    fprintf(to, "  --%s%s%s", row->name, row->arg != NULL ? " " : "", row->arg != NULL ? row->arg : "");
    fprintf(to, "%*s", from - flag_width(row), "");
    print_wrapped(to, text, from);
}

static bool same_section(const tn_cfg_row *a, const tn_cfg_row *b) {
    return strcmp(a->section != NULL ? a->section : "", b->section != NULL ? b->section : "") == 0;
}

void tn_cfg_help(const tn_cfg_row *rows, size_t n, FILE *to) {
    int from = 0;

    for (size_t i = 0; i < n; i++) {
        int width = flag_width(&rows[i]) + 2;

        from = width > from ? width : from;
    }
    for (size_t i = 0; i < n; i++) {
        bool printed = false; /* with the section's first row */

        for (size_t j = 0; j < i && !printed; j++)
            printed = same_section(&rows[i], &rows[j]);
        if (printed)
            continue;
        fprintf(to, "%s%s:\n", i > 0 ? "\n" : "", rows[i].section != NULL ? rows[i].section : "general");
        for (size_t j = i; j < n; j++) {
            if (same_section(&rows[i], &rows[j]))
                print_row(to, &rows[j], from);
        }
    }
}
