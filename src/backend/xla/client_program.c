/* Programs: compiling StableHLO text (or loading what an earlier start compiled) and running it.
 * In: text, its signature, options. Out: programs whose arguments are checked before each run.
 * The options travel as a serialised CompileOptionsProto, written here by hand: field 3 holds the
 * build options (4 replicas, 5 partitions, 6 SPMD, 19 Shardy), field 7 is a map of compiler flags
 * (1 name, 2 value: 1 string, 2 bool, 3 integer). Replica and partition counts must be there: a
 * plugin aborts the process without them. Compiler flags go this way and not through XLA_FLAGS,
 * where an unknown name aborts, too.
 * A program in the disk cache is found by a digest of its text, the options, the plugin, what the
 * devices say of themselves, the processor and the number of threads. */
#define _GNU_SOURCE
#ifdef MLXCEL_XLA_DEVICE_RUNTIME

#include "backend/xla/client_private.h"

#include "base/buf.h"
#include "base/cpu.h"
#include "base/log.h"
#include "base/mem.h"

#include <string.h>

enum { MAX_OPTION_BYTES = 1 << 20, MAX_RUN_DEVICES = 1024, MAX_PARAMS = 1 << 20 };

static const char SCHEDULER[] = "xla_cpu_scheduler_type";
static const struct mxc_xla_flag scheduler = {
    .name = SCHEDULER, .kind = MXC_XLA_FLAG_STRING, .text = "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"};

/* ---- options ---- */

static void put_varint(struct mxc_buf *buf, uint64_t value) {
    for (; value > 127; value >>= 7)
        (void)mxc_buf_putc(buf, (char)(unsigned char)((value & 127) | 128));
    (void)mxc_buf_putc(buf, (char)value);
}

static void put_int(struct mxc_buf *buf, unsigned field, uint64_t value) {
    put_varint(buf, field << 3);
    put_varint(buf, value);
}

static void put_bytes(struct mxc_buf *buf, unsigned field, const void *bytes, size_t length) {
    put_varint(buf, field << 3 | 2);
    put_varint(buf, length);
    (void)mxc_buf_append(buf, bytes, length);
}

static void put_flag(struct mxc_buf *buf, const struct mxc_xla_flag *flag) {
    struct mxc_buf value, entry;
    mxc_buf_init(&value, MAX_OPTION_BYTES);
    mxc_buf_init(&entry, MAX_OPTION_BYTES);
    if (flag->kind == MXC_XLA_FLAG_STRING)
        put_bytes(&value, 1, flag->text, strlen(flag->text));
    else if (flag->kind == MXC_XLA_FLAG_BOOL)
        put_int(&value, 2, flag->value != 0);
    else
        put_int(&value, 3, (uint64_t)flag->value);
    put_bytes(&entry, 1, flag->name, strlen(flag->name));
    put_bytes(&entry, 2, mxc_buf_text(&value), value.length);
    put_bytes(buf, 7, mxc_buf_text(&entry), entry.length);
    buf->failed |= value.failed || entry.failed;
    mxc_buf_fini(&value);
    mxc_buf_fini(&entry);
}

/* with_scheduler: also the flag that every program for CPU gets by default. */
static enum mxc_code write_options(const struct mxc_xla_compile_options *options,
                                   bool with_scheduler, struct mxc_buf *out, struct mxc_err *err) {
    struct mxc_buf build;
    mxc_buf_clear(out);
    mxc_buf_init(&build, MAX_OPTION_BYTES);
    put_int(&build, 4, (uint64_t)(options->n_replicas ? options->n_replicas : 1));
    put_int(&build, 5, (uint64_t)(options->n_partitions ? options->n_partitions : 1));
    if (options->spmd)
        put_int(&build, 6, 1);
    if (options->spmd && options->shardy)
        put_int(&build, 19, 1);
    put_bytes(out, 3, mxc_buf_text(&build), build.length);
    out->failed |= build.failed;
    mxc_buf_fini(&build);
    for (int i = 0; i < options->n_flags; i++)
        put_flag(out, &options->flags[i]);
    if (with_scheduler)
        put_flag(out, &scheduler);
    return mxc_buf_status(out, err);
}

static bool wants_scheduler(const struct mxc_xla_client *client,
                            const struct mxc_xla_compile_options *options) {
    bool wanted = client->info.is_cpu && !options->plain_scheduler;
    for (int i = 0; i < options->n_flags; i++)
        wanted = wanted && strcmp(options->flags[i].name, SCHEDULER) != 0;
    return wanted;
}

static enum mxc_code check_options(const struct mxc_xla_client *client,
                                   const struct mxc_xla_compile_options *o, const char *name,
                                   struct mxc_err *err) {
    size_t bytes;
    int64_t replicas = o->n_replicas ? o->n_replicas : 1;
    int64_t partitions = o->n_partitions ? o->n_partitions : 1;
    if (replicas < 1 || partitions < 1 || replicas > MAX_RUN_DEVICES ||
        partitions > MAX_RUN_DEVICES || replicas * partitions > client->info.n_devices)
        return mxc_err_set(err, MXC_E_ARG, "XLA: %s: %d x %d devices, and %d are open", name,
                           (int)replicas, (int)partitions, client->info.n_devices);
    if (o->n_inputs < 0 || o->n_inputs > MAX_PARAMS || o->n_outputs < 1 ||
        o->n_outputs > MAX_PARAMS)
        return mxc_err_set(err, MXC_E_ARG, "XLA: %s: the counts of arguments and results", name);
    for (int i = 0; i < o->n_inputs; i++)
        if (!mxc_xla_shape_bytes(&o->inputs[i].shape, &bytes))
            return mxc_err_set(err, MXC_E_ARG, "XLA: %s: the shape of argument %d", name, i);
    for (int i = 0; i < o->n_outputs; i++)
        if (!mxc_xla_shape_bytes(&o->outputs[i].shape, &bytes))
            return mxc_err_set(err, MXC_E_ARG, "XLA: %s: the shape of result %d", name, i);
    return MXC_OK;
}

/* ---- the disk cache ---- */

static void add_text(struct mxc_blake2b *state, const void *bytes, size_t length) {
    const uint64_t n = length;
    mxc_blake2b_add(state, &n, sizeof n);
    mxc_blake2b_add(state, bytes, length);
}

static void key_of(const struct mxc_xla_client *client, const char *text, size_t length,
                   const struct mxc_buf *options, uint8_t key[MXC_XLA_DIGEST_BYTES]) {
    const struct mxc_xla_client_info *info = &client->info;
    struct mxc_blake2b state;
    mxc_blake2b_init(&state);
    add_text(&state, client->digest, strlen(client->digest));
    add_text(&state, info->platform, strlen(info->platform));
    add_text(&state, info->version, strlen(info->version));
    for (int i = 0; i < info->n_devices; i++)
        add_text(&state, info->devices[i].kind, strlen(info->devices[i].kind));
    const int64_t counts[] = {info->n_devices, client->n_threads, mxc_cpu_count()};
    mxc_blake2b_add(&state, counts, sizeof counts);
    mxc_xla_cache_add_cpu(&state);
    add_text(&state, mxc_buf_text(options), options->length);
    add_text(&state, text, length);
    mxc_blake2b_end(&state, key);
}

/* NULL: not there, damaged, or no longer to this plugin's liking. */
static struct pjrt_loaded *load_cached(struct mxc_xla_client *c,
                                       const uint8_t key[MXC_XLA_DIGEST_BYTES]) {
    struct mxc_xla_cached cached;
    if (!c->cache || !PJRT_HAS(c->api, deserialize_and_load) ||
        !mxc_xla_cache_get(c->cache, key, &cached))
        return NULL;
    struct pjrt_deserialize_args a = {.struct_size = PJRT_SIZE(pjrt_deserialize_args, load_options),
                                      .client = c->client,
                                      .bytes = (const char *)cached.content,
                                      .n_bytes = cached.size};
    bool failed = mxc_xla_client_drop(c, c->api->deserialize_and_load(&a));
    mxc_xla_cache_release(&cached);
    if (failed)
        mxc_xla_cache_drop(c->cache, key);
    return failed ? NULL : a.loaded;
}

/* What cannot be kept is compiled again next time: no failure of the program. */
static void keep(struct mxc_xla_client *c, const char *name,
                 const uint8_t key[MXC_XLA_DIGEST_BYTES], struct pjrt_executable *executable) {
    if (!c->cache || !PJRT_HAS(c->api, executable_serialize) ||
        !PJRT_HAS(c->api, deserialize_and_load))
        return;
    struct pjrt_serialize_args a = {.struct_size = PJRT_SIZE(pjrt_serialize_args, release),
                                    .executable = executable};
    struct mxc_err err = {.message = "the plugin does not serialise it"};
    struct pjrt_error *error = c->api->executable_serialize(&a);
    bool kept = !error && !mxc_xla_cache_put(c->cache, key, a.bytes, a.n_bytes, &err);
    if (!error && a.release)
        a.release(a.serialized);
    (void)mxc_xla_client_drop(c, error);
    if (!kept)
        mxc_log(MXC_LOG_DEBUG, "XLA: %s is not kept on disk: %s", name, err.message);
}

/* ---- compiling ---- */

static struct pjrt_error *compile_text(struct mxc_xla_client *c, const char *text, size_t length,
                                       const struct mxc_buf *options, struct pjrt_loaded **loaded) {
    static const char format[] = "mlir";
    struct pjrt_program program = {.struct_size = sizeof program,
                                   .code = text,
                                   .code_size = length,
                                   .format = format,
                                   .format_size = sizeof format - 1};
    struct pjrt_client_compile_args a = {.struct_size = PJRT_SIZE(pjrt_client_compile_args, loaded),
                                         .client = c->client,
                                         .program = &program,
                                         .options = mxc_buf_text(options),
                                         .options_size = options->length};
    struct pjrt_error *error = c->api->client_compile(&a);
    if (!error)
        *loaded = a.loaded;
    return error;
}

static void loaded_free(struct mxc_xla_client *c, struct pjrt_loaded *loaded) {
    (void)mxc_xla_client_drop(
        c, c->api->loaded_destroy(&(struct pjrt_loaded_args){
               .struct_size = PJRT_SIZE(pjrt_loaded_args, loaded), .loaded = loaded}));
}

/* Gets program->loaded, from disk or by compiling; *fresh: it was compiled. A flag that the plugin
 * does not know is an error, unless it is the one added here. */
static enum mxc_code get_loaded(struct mxc_xla_client *c, struct mxc_xla_program *program,
                                const char *text, size_t length,
                                const struct mxc_xla_compile_options *options,
                                uint8_t key[MXC_XLA_DIGEST_BYTES], struct mxc_err *err) {
    struct mxc_buf bytes;
    mxc_buf_init(&bytes, MAX_OPTION_BYTES);
    bool with_scheduler = wants_scheduler(c, options);
    enum mxc_code code = write_options(options, with_scheduler, &bytes, err);
    if (code)
        goto out;
    key_of(c, text, length, &bytes, key);
    if ((program->loaded = load_cached(c, key))) {
        program->from_cache = true;
        c->counters.cached++;
        goto out;
    }
    struct mxc_err first;
    code = mxc_xla_client_check(c, compile_text(c, text, length, &bytes, &program->loaded),
                                MXC_XLA_COMPILING, &first, "compiling %s", program->name);
    if (code && with_scheduler && !c->lost && strstr(first.message, SCHEDULER)) {
        if ((code = write_options(options, false, &bytes, err)))
            goto out;
        code = mxc_xla_client_check(c, compile_text(c, text, length, &bytes, &program->loaded),
                                    MXC_XLA_COMPILING, &first, "compiling %s", program->name);
    }
    if (!code)
        c->counters.compiled++;
    else if (err)
        *err = first;
out:
    mxc_buf_fini(&bytes);
    return code;
}

/* Checks the count of results, reads what a run needs, and keeps a program that was compiled. */
static enum mxc_code inspect(struct mxc_xla_client *c, struct mxc_xla_program *program,
                             const uint8_t key[MXC_XLA_DIGEST_BYTES], struct mxc_err *err) {
    struct pjrt_get_executable_args g = {
        .struct_size = PJRT_SIZE(pjrt_get_executable_args, executable), .loaded = program->loaded};
    enum mxc_code code =
        mxc_xla_client_check(c, c->api->loaded_get_executable(&g), MXC_XLA_COMPILING, err,
                             "compiling %s", program->name);
    if (code)
        return code;
    struct pjrt_num_outputs_args n = {.struct_size = PJRT_SIZE(pjrt_num_outputs_args, n_outputs),
                                      .executable = g.executable};
    code = mxc_xla_client_check(c, c->api->executable_num_outputs(&n), MXC_XLA_COMPILING, err,
                                "compiling %s", program->name);
    if (!code && n.n_outputs != program->n_outputs)
        code = mxc_err_set(err, MXC_E_INTERNAL, "XLA: %s has %zu results, %zu were declared",
                           program->name, n.n_outputs, program->n_outputs);
    struct pjrt_memory_stats_args m = {.struct_size =
                                           PJRT_SIZE(pjrt_memory_stats_args, peak_unpadded),
                                       .executable = g.executable};
    if (!code && PJRT_HAS(c->api, executable_memory_stats) &&
        !mxc_xla_client_drop(c, c->api->executable_memory_stats(&m)))
        program->temp_bytes = m.temp > 0 ? (uint64_t)m.temp : 0;
    if (!code && !program->from_cache)
        keep(c, program->name, key, g.executable);
    (void)mxc_xla_client_drop(c, c->api->executable_destroy(&(struct pjrt_executable_args){
                                     .struct_size = PJRT_SIZE(pjrt_executable_args, executable),
                                     .executable = g.executable}));
    return code;
}

static bool copy_params(const struct mxc_xla_param *from, int n, struct mxc_xla_param **to) {
    if (!(*to = mxc_mem_array((size_t)n + 1, sizeof **to)))
        return false;
    if (n)
        memcpy(*to, from, (size_t)n * sizeof **to);
    return true;
}

static enum mxc_code program_new(struct mxc_xla_client *c, const char *name,
                                 const struct mxc_xla_compile_options *options,
                                 struct mxc_xla_program **program, struct mxc_err *err) {
    struct mxc_xla_program *p = mxc_mem_zalloc(1, sizeof *p);
    if (!p)
        return mxc_err_nomem(err);
    c->counters.live_programs++;
    p->client = c;
    p->n_inputs = (size_t)options->n_inputs;
    p->n_outputs = (size_t)options->n_outputs;
    p->n_devices = (size_t)(options->n_replicas ? options->n_replicas : 1) *
                   (size_t)(options->n_partitions ? options->n_partitions : 1);
    p->name = mxc_mem_strdup(name);
    p->made = mxc_mem_zalloc(p->n_devices * p->n_outputs, sizeof *p->made);
    p->args = mxc_mem_zalloc(p->n_devices * p->n_inputs + 1, sizeof *p->args);
    p->results = mxc_mem_zalloc(p->n_devices * p->n_outputs, sizeof *p->results);
    p->arg_lists = mxc_mem_zalloc(p->n_devices, sizeof *p->arg_lists);
    p->result_lists = mxc_mem_zalloc(p->n_devices, sizeof *p->result_lists);
    p->events = mxc_mem_zalloc(p->n_devices, sizeof *p->events);
    if (!copy_params(options->inputs, options->n_inputs, &p->inputs) ||
        !copy_params(options->outputs, options->n_outputs, &p->outputs) || !p->name || !p->made ||
        !p->args || !p->results || !p->arg_lists || !p->result_lists || !p->events) {
        mxc_xla_program_free(p);
        return mxc_err_nomem(err);
    }
    for (size_t d = 0; d < p->n_devices; d++) {
        p->arg_lists[d] = p->args + d * p->n_inputs;
        p->result_lists[d] = p->results + d * p->n_outputs;
    }
    *program = p;
    return MXC_OK;
}

enum mxc_code mxc_xla_compile(struct mxc_xla_client *client, const char *name, const char *text,
                              size_t length, const struct mxc_xla_compile_options *options,
                              struct mxc_xla_program **program, struct mxc_err *err) {
    struct mxc_xla_program *p = NULL;
    uint8_t key[MXC_XLA_DIGEST_BYTES];
    enum mxc_code code = mxc_xla_client_usable(client, err);
    if (code || (code = check_options(client, options, name, err)) ||
        (code = program_new(client, name, options, &p, err)) ||
        (code = get_loaded(client, p, text, length, options, key, err)) ||
        (code = inspect(client, p, key, err))) {
        mxc_xla_program_free(p);
        return code;
    }
    *program = p;
    return MXC_OK;
}

void mxc_xla_program_free(struct mxc_xla_program *program) {
    if (!program)
        return;
    if (program->loaded)
        loaded_free(program->client, program->loaded);
    program->client->counters.live_programs--;
    mxc_mem_free(program->name);
    mxc_mem_free(program->inputs);
    mxc_mem_free(program->outputs);
    mxc_mem_free((void *)program->made);
    mxc_mem_free((void *)program->args);
    mxc_mem_free((void *)program->results);
    mxc_mem_free((void *)program->arg_lists);
    mxc_mem_free((void *)program->result_lists);
    mxc_mem_free((void *)program->events);
    mxc_mem_free(program);
}

uint64_t mxc_xla_program_temp_bytes(const struct mxc_xla_program *program) {
    return program->temp_bytes;
}

bool mxc_xla_program_from_cache(const struct mxc_xla_program *program) {
    return program->from_cache;
}

uint64_t mxc_xla_program_executions(const struct mxc_xla_program *program) {
    return program->executions;
}

/* ---- running ---- */

static enum mxc_code check_input(const struct mxc_xla_program *p, size_t device, size_t i,
                                 const struct mxc_xla_buffer *b, struct mxc_err *err) {
    const struct mxc_xla_param *param = &p->inputs[i];
    const char *why = NULL;
    if (!b)
        why = "is missing";
    else if (b->client != p->client)
        why = "belongs to another client";
    else if (b->donated)
        why = "was donated before";
    else if ((size_t)b->device != device)
        why = "lies on another device";
    else if (!mxc_xla_shape_equal(&b->shape, &param->shape))
        why = "has another type or shape than the program's";
    else if (param->donated && b->borrowed)
        why = "is borrowed host memory, which cannot be donated";
    if (!why)
        return MXC_OK;
    return mxc_err_set(err, MXC_E_ARG, "XLA: %s: argument %zu of device %zu %s", p->name, i, device,
                       why);
}

/* A buffer that is donated stands in one place only: arguments that are donated leave the number of
 * this run on their buffer first, then every place must be the one that left it. */
static enum mxc_code check_inputs(struct mxc_xla_program *p, struct mxc_xla_buffer *const *inputs,
                                  struct mxc_err *err) {
    const uint64_t run = ++p->client->run;
    enum mxc_code code = MXC_OK;
    for (int donated = 1; donated >= 0; donated--)
        for (size_t d = 0; d < p->n_devices; d++)
            for (size_t i = 0; i < p->n_inputs; i++) {
                struct mxc_xla_buffer *b = inputs[d * p->n_inputs + i];
                if (p->inputs[i].donated != (donated == 1))
                    continue;
                if ((code = check_input(p, d, i, b, err)))
                    return code;
                if (b->run == run)
                    return mxc_err_set(err, MXC_E_ARG,
                                       "XLA: %s: argument %zu of device %zu is donated in another "
                                       "place of the same run",
                                       p->name, i, d);
                if (donated)
                    b->run = run;
            }
    return MXC_OK;
}

static void drop_made(struct mxc_xla_program *p) {
    for (size_t i = 0; i < p->n_devices * p->n_outputs; i++) {
        mxc_xla_buffer_free(p->made[i]);
        p->made[i] = NULL;
    }
}

/* Handles of the results, before the run: afterwards nothing can fail for want of memory. */
static enum mxc_code make_handles(struct mxc_xla_program *p, struct mxc_err *err) {
    for (size_t i = 0; i < p->n_devices * p->n_outputs; i++)
        if (!(p->made[i] = mxc_xla_buffer_blank(p->client, (int)(i / p->n_outputs),
                                                &p->outputs[i % p->n_outputs].shape))) {
            drop_made(p);
            return mxc_err_nomem(err);
        }
    return MXC_OK;
}

/* Starts the run and waits for every device. The results of a run that was started stand in
 * p->results, also when it failed. */
static struct pjrt_error *run(struct mxc_xla_program *p) {
    struct mxc_xla_client *c = p->client;
    memset((void *)p->results, 0, p->n_devices * p->n_outputs * sizeof *p->results);
    memset((void *)p->events, 0, p->n_devices * sizeof *p->events);
    struct pjrt_execute_options options = {.struct_size =
                                               PJRT_SIZE(pjrt_execute_options, n_output_callbacks)};
    struct pjrt_execute_args a = {.struct_size = PJRT_SIZE(pjrt_execute_args, device),
                                  .loaded = p->loaded,
                                  .options = &options,
                                  .arguments = p->arg_lists,
                                  .n_devices = p->n_devices,
                                  .n_arguments = p->n_inputs,
                                  .outputs = p->result_lists,
                                  .events = p->events};
    struct pjrt_error *error = c->api->loaded_execute(&a);
    if (error) { /* nothing was started: what stands in the lists is not ours */
        memset((void *)p->results, 0, p->n_devices * p->n_outputs * sizeof *p->results);
        return error;
    }
    for (size_t d = 0; d < p->n_devices; d++) {
        struct pjrt_error *late = mxc_xla_client_await(c, p->events[d]);
        if (error)
            (void)mxc_xla_client_drop(c, late);
        else
            error = late;
    }
    return error;
}

enum mxc_code mxc_xla_execute(struct mxc_xla_program *program, struct mxc_xla_buffer *const *inputs,
                              size_t n_inputs, struct mxc_xla_buffer **outputs, size_t n_outputs,
                              struct mxc_err *err) {
    struct mxc_xla_program *p = program;
    struct mxc_xla_client *c = p->client;
    enum mxc_code code = mxc_xla_client_usable(c, err);
    if (code)
        return code;
    if (n_inputs != p->n_devices * p->n_inputs || n_outputs != p->n_devices * p->n_outputs)
        return mxc_err_set(err, MXC_E_ARG,
                           "XLA: %s: %zu arguments and %zu results for %zu devices of %zu and %zu",
                           p->name, n_inputs, n_outputs, p->n_devices, p->n_inputs, p->n_outputs);
    if ((code = check_inputs(p, inputs, err)) || (code = make_handles(p, err)))
        return code;
    for (size_t i = 0; i < n_inputs; i++) {
        p->args[i] = inputs[i]->buffer;
        inputs[i]->donated = p->inputs[i % p->n_inputs].donated;
    }
    code = mxc_xla_client_check(c, run(p), MXC_XLA_RUNNING, err, "running %s", p->name);
    for (size_t i = 0; i < n_outputs; i++)
        p->made[i]->buffer = p->results[i];
    if (code) {
        drop_made(p);
        return code;
    }
    for (size_t i = 0; i < n_outputs; i++) {
        outputs[i] = p->made[i];
        p->made[i] = NULL;
    }
    c->counters.executions++;
    p->executions++;
    return MXC_OK;
}

#endif
