/* torchnative-ctl: what an operator does around the server. Built so far: certificates. See docs/server.md. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/config.h"
#include "core/file.h"
#include "fed/fed.h"
#include "server/ctl.h"
#include "server/server.h"
#include "transport/transport.h"

enum { DONE = 0, FAILED = 1, USAGE = 2 };

typedef struct settings {
    char *dir, *ca_name, *server;
    tn_cfg_list hosts;
    int64_t days, clients;
    bool is_server, json, help, version;
} settings;

#define F(field) offsetof(settings, field)

static const tn_cfg_row init_rows[] = {
    {"dir", NULL, "DIR", "folder of the CA, which is made", "certs", TN_CFG_STR, F(dir), 0, 0},
    {"name", NULL, "NAME", "name of the CA", "torchnative-ca", TN_CFG_STR, F(ca_name), 0, 0},
    {"server", NULL, "HOST", "name or address by which clients reach the server; localhost, 127.0.0.1 and ::1 always work",
     "localhost", TN_CFG_STR, F(server), 0, 0},
    {"clients", NULL, "N", "issue client-1 to client-N as well", "0", TN_CFG_INT, F(clients), 0, 10000},
    {"days", NULL, "N", "validity", "365", TN_CFG_INT, F(days), 1, 3650},
    {"json", NULL, NULL, "print for machines", NULL, TN_CFG_BOOL, F(json), 0, 0},
};

static const tn_cfg_row issue_rows[] = {
    {"dir", NULL, "DIR", "folder of the CA", "certs", TN_CFG_STR, F(dir), 0, 0},
    {"server", NULL, NULL, "a server's certificate; without it a client's, which is enrolled in DIR/enrolled", NULL,
     TN_CFG_BOOL, F(is_server), 0, 0},
    {"host", NULL, "HOST", "name or address of the server; repeatable", NULL, TN_CFG_LIST, F(hosts), 0, 0},
    {"days", NULL, "N", "validity", "365", TN_CFG_INT, F(days), 1, 3650},
    {"json", NULL, NULL, "print for machines", NULL, TN_CFG_BOOL, F(json), 0, 0},
};

#define COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))

static void help(FILE *to) {
    fputs("usage: torchnative-ctl cert init [...]         makes a CA, a server's certificate and clients'\n"
          "       torchnative-ctl cert issue NAME [...]   one more certificate, with an identity\n"
          "       torchnative-ctl dp ...                  privacy: what was spent, what a budget needs (dp --help)\n"
          "       torchnative-ctl --version\n\ncert init\n", to);
    tn_cfg_help(init_rows, COUNT(init_rows), to);
    fputs("\ncert issue\n", to);
    tn_cfg_help(issue_rows, COUNT(issue_rows), to);
}

/* ---- What was written, for the end: a list for persons, or one JSON object ---- */

typedef struct written {
    char **path;
    size_t n;
} written;

static tn_code note(written *w, const char *path, tn_err *err) {
    char **grown = realloc(w->path, (w->n + 1) * sizeof(*grown));
    char *copy = strdup(path);

    if (grown != NULL)
        w->path = grown;
    if (grown == NULL || copy == NULL) {
        free(copy);
        return tn_fail(err, TN_ENOMEM, "no memory");
    }
    w->path[w->n++] = copy;
    return TN_OK;
}

static void written_release(written *w) {
    for (size_t i = 0; i < w->n; i++)
        free(w->path[i]);
    free(w->path);
}

static void print_json_text(const char *s) {
    putchar('"');
    for (; *s != '\0'; s++) {
        if (*s == '"' || *s == '\\')
            putchar('\\');
        if ((unsigned char)*s < 0x20)
            printf("\\u%04x", (unsigned)*s);
        else
            putchar(*s);
    }
    putchar('"');
}

static void print_json(const written *w) {
    fputs("{\"written\": [", stdout);
    for (size_t i = 0; i < w->n; i++) {
        if (i != 0)
            fputs(", ", stdout);
        print_json_text(w->path[i]);
    }
    puts("]}");
}

/* ---- Issuing ---- */

typedef struct paths {
    char cert[4096], key[4096], identity[4096], enrolled[4096];
} paths;

static tn_code make_paths(paths *p, const char *dir, const char *name, tn_err *err) {
    const size_t cap = sizeof(p->cert);

    if ((size_t)snprintf(p->cert, cap, "%s/%s.pem", dir, name) >= cap ||
        (size_t)snprintf(p->key, cap, "%s/%s.key", dir, name) >= cap ||
        (size_t)snprintf(p->identity, cap, "%s/%s.identity", dir, name) >= cap ||
        (size_t)snprintf(p->enrolled, cap, "%s/enrolled", dir) >= cap)
        return tn_fail(err, TN_EINVAL, "--dir: the path is too long");
    return TN_OK;
}

/* Certificate, key and identity; for a client the line in `enrolled` too. What it made is gone again when it fails. */
static tn_code issue(const settings *s, const tn_cert_request *request, written *w, tn_err *err) {
    tn_enrolled entry;
    tn_key key = {.sk = NULL};
    paths p;
    bool made_cert = false, made_identity = false;
    tn_code code = TN_OK;

    if (!tn_id_valid(request->name))
        return tn_fail(err, TN_EINVAL, "\"%.80s\" is no name: 1 to 64 letters, digits, '.', '-' and '_', the first a letter "
                       "or digit", request->name);
    if ((code = make_paths(&p, s->dir, request->name, err)) != TN_OK)
        return code;
    if (access(p.identity, F_OK) == 0)
        return tn_fail(err, TN_EBUSY, "%s is there already; it is never overwritten", p.identity);
    memset(&entry, 0, sizeof(entry));
    code = tn_cert_issue(s->dir, request, p.cert, p.key, entry.cert, err);
    made_cert = code == TN_OK;
    if (code == TN_OK)
        code = tn_key_new(&key, err);
    if (code == TN_OK) {
        code = tn_key_save(&key, p.identity, err);
        made_identity = code == TN_OK;
    }
    if (code == TN_OK && !request->server) {
        snprintf(entry.id, sizeof(entry.id), "%s", request->name);
        memcpy(entry.key, key.pk, sizeof(entry.key));
        code = tn_roster_append(p.enrolled, &entry, err);
    }
    tn_key_release(&key);
    if (code != TN_OK) {
        if (made_identity)
            unlink(p.identity);
        if (made_cert) {
            unlink(p.cert);
            unlink(p.key);
        }
        return code;
    }
    if ((code = note(w, p.cert, err)) != TN_OK || (code = note(w, p.key, err)) != TN_OK)
        return code;
    return note(w, p.identity, err);
}

/* An empty list of clients lets a server start before the first client is enrolled. */
static tn_code make_enrolled(const settings *s, written *w, tn_err *err) {
    static const char text[] = "# id, public key, SHA-256 of the certificate\n";
    const tn_part part = {text, sizeof(text) - 1};
    paths p;
    tn_code code = make_paths(&p, s->dir, "", err);

    if (code == TN_OK && access(p.enrolled, F_OK) != 0)
        code = tn_file_write_atomic(p.enrolled, &part, 1, 0644, err);
    return code == TN_OK ? note(w, p.enrolled, err) : code;
}

static tn_code cert_init(const settings *s, written *w, tn_err *err) {
    const char *hosts[] = {"localhost", "127.0.0.1", "::1", s->server};
    tn_cert_request request = {.name = "server", .hosts = hosts, .nhosts = 4, .server = true, .days = (int)s->days};
    char name[32];
    paths p;
    tn_code code;

    for (size_t i = 0; i < 3; i++) {
        if (strcmp(s->server, hosts[i]) == 0)
            request.nhosts = 3;
    }
    if ((code = make_paths(&p, s->dir, "ca", err)) != TN_OK ||
        (code = tn_cert_init(s->dir, s->ca_name, (int)s->days, err)) != TN_OK ||
        (code = note(w, p.cert, err)) != TN_OK || (code = note(w, p.key, err)) != TN_OK ||
        (code = make_enrolled(s, w, err)) != TN_OK || (code = issue(s, &request, w, err)) != TN_OK)
        return code;
    for (int64_t i = 1; i <= s->clients && code == TN_OK; i++) {
        snprintf(name, sizeof(name), "client-%d", (int)i);
        request = (tn_cert_request){.name = name, .days = (int)s->days};
        code = issue(s, &request, w, err);
    }
    return code;
}

static void say_next(const settings *s) {
    const char *d = s->dir;

    printf("\nStart the server:\n"
           "  torchnative-server --listen tls+tcp://0.0.0.0:4433 --tls-cert %s/server.pem --tls-key %s/server.key \\\n"
           "      --tls-ca %s/ca.pem --state state --model model.safetensors --rounds 20\n", d, d, d);
    if (s->clients == 0)
        printf("Make a client's certificate and identity:\n  torchnative-ctl cert issue client-1 --dir %s\n", d);
    printf("In a client's program:\n"
           "  engine = federated.Engine(..., server=\"tls+tcp://%s:4433\", tls=federated.TLS.from_folder(\"%s\", \"client-1\"))\n"
           "A client needs ca.pem and the three files of its name; keep ca.key, and all other files, to yourself.\n",
           s->server, d);
}

/* ---- Commands ---- */

static int report(const char *what, const tn_err *err) {
    bool usage = err->code == TN_EINVAL || err->code == TN_EUNSUPPORTED;

    fprintf(stderr, "torchnative-ctl%s: %s\n", what, err->msg);
    return usage ? USAGE : FAILED;
}

static int init_command(int argc, char **argv) {
    settings s = {.dir = NULL};
    written w = {NULL, 0};
    tn_err err = TN_ERR_INIT;
    tn_code code = tn_cfg_defaults(init_rows, COUNT(init_rows), &s, &err);

    if (code == TN_OK)
        code = tn_cfg_argv(init_rows, COUNT(init_rows), &s, argc, argv, NULL, &err);
    if (code == TN_OK)
        code = cert_init(&s, &w, &err);
    if (code == TN_OK && s.json) {
        print_json(&w);
    } else if (code == TN_OK) {
        for (size_t i = 0; i < w.n; i++)
            printf("wrote %s\n", w.path[i]);
        say_next(&s);
    }
    written_release(&w);
    tn_cfg_release(init_rows, COUNT(init_rows), &s);
    return code == TN_OK ? DONE : report(" cert init", &err);
}

static int issue_command(int argc, char **argv) {
    settings s = {.dir = NULL};
    written w = {NULL, 0};
    tn_cfg_list names = {NULL, 0};
    tn_cert_request request = {.name = NULL};
    tn_err err = TN_ERR_INIT;
    tn_code code = tn_cfg_defaults(issue_rows, COUNT(issue_rows), &s, &err);

    if (code == TN_OK)
        code = tn_cfg_argv(issue_rows, COUNT(issue_rows), &s, argc, argv, &names, &err);
    if (code == TN_OK && names.count != 1)
        code = tn_fail(&err, TN_EINVAL, "give one name: torchnative-ctl cert issue NAME");
    if (code == TN_OK && !s.is_server && s.hosts.count != 0)
        code = tn_fail(&err, TN_EINVAL, "--host belongs to a server's certificate: add --server");
    if (code == TN_OK && s.is_server && s.hosts.count == 0)
        code = tn_fail(&err, TN_EINVAL, "--server needs at least one --host: the name or address by which clients reach it");
    if (code == TN_OK) {
        request = (tn_cert_request){.name = names.item[0],
                                    .hosts = (const char *const *)s.hosts.item,
                                    .nhosts = s.hosts.count,
                                    .server = s.is_server,
                                    .days = (int)s.days};
        code = issue(&s, &request, &w, &err);
    }
    if (code == TN_OK && s.json) {
        print_json(&w);
    } else if (code == TN_OK) {
        for (size_t i = 0; i < w.n; i++)
            printf("wrote %s\n", w.path[i]);
        if (!s.is_server)
            printf("enrolled %s in %s/enrolled\n", request.name, s.dir);
    }
    free(names.item);
    written_release(&w);
    tn_cfg_release(issue_rows, COUNT(issue_rows), &s);
    return code == TN_OK ? DONE : report(" cert issue", &err);
}

static int not_built(const char *command) {
    static const char *const verbs[] = {"status", "rounds", "clients", "model", "start", "pause", "resume", "stop", "token",
                                        "cert revoke"};

    for (size_t i = 0; i < COUNT(verbs); i++) {
        if (strcmp(command, verbs[i]) == 0) {
            fprintf(stderr, "torchnative-ctl: %s is not built yet\n", command);
            return USAGE;
        }
    }
    fprintf(stderr, "torchnative-ctl: \"%.80s\" is no command\n(`torchnative-ctl --help` lists them)\n", command);
    return USAGE;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        help(stderr);
        return USAGE;
    }
    if (strcmp(argv[1], "--help") == 0) {
        help(stdout);
        return DONE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("torchnative-ctl " TN_VERSION);
        return DONE;
    }
    if (strcmp(argv[1], "dp") == 0)
        return ctl_dp(argc - 1, argv + 1);
    if (strcmp(argv[1], "cert") != 0)
        return not_built(argv[1]);
    if (argc > 2 && strcmp(argv[2], "init") == 0)
        return init_command(argc - 2, argv + 2);
    if (argc > 2 && strcmp(argv[2], "issue") == 0)
        return issue_command(argc - 2, argv + 2);
    return not_built(argc > 2 && strcmp(argv[2], "revoke") == 0 ? "cert revoke" : argc > 2 ? argv[2] : "cert");
}
