/* Anthropic's messages: requests to chat requests, or a fault that names the field; answers as
 * events, byte for byte. */
#define _GNU_SOURCE
#include "fake.h"

#include "base/mem.h"
#include "server/anthropic.h"
#include "server/fault.h"

#include <stdlib.h>
#include <string.h>

/* ---- requests */

static const struct {
    const char *request, *chat; /* chat NULL: the fault's field and a piece of its message */
    const char *param, *piece;
} cases[] = {
    {"{'max_tokens':5,'messages':[{'role':'user','content':'Hi'}]}",
     "{'max_tokens':5,'messages':[{'role':'user','content':'Hi'}]}", NULL, NULL},
    {"{'max_tokens':5,'model':'m','stream':true,'temperature':0.5,'top_p':0.9,'top_k':3,'seed':1,"
     "'stop_sequences':['a','b'],'metadata':{'user_id':'u'},'service_tier':'auto','unknown':[1],"
     "'messages':[{'role':'user','content':'Hi'}]}",
     "{'max_tokens':5,'model':'m','stream':true,'temperature':0.5,'top_p':0.9,'top_k':3,'seed':1,"
     "'stop':['a','b'],'messages':[{'role':'user','content':'Hi'}]}",
     NULL, NULL},
    /* system: text or blocks */
    {"{'max_tokens':5,'system':'Be','messages':[{'role':'user','content':'Hi'}]}",
     "{'max_tokens':5,'messages':[{'role':'system','content':'Be'},{'role':'user','content':'Hi'}]"
     "}",
     NULL, NULL},
    {"{'max_tokens':5,'system':[{'type':'text','text':'A','cache_control':{'type':'ephemeral'}},"
     "{'type':'text','text':'B'}],'messages':[{'role':'user','content':[{'type':'text','text':'Hi'"
     "}]}]}",
     "{'max_tokens':5,'messages':[{'role':'system','content':[{'type':'text','text':'A'},{'type':"
     "'text','text':'B'}]},{'role':'user','content':'Hi'}]}",
     NULL, NULL},
    /* images, documents */
    {"{'max_tokens':5,'messages':[{'role':'user','content':[{'type':'image','source':{'type':"
     "'base64','media_type':'image/png','data':'aGk='}},{'type':'image','source':{'type':'url',"
     "'url':'http://x/y.png'}},{'type':'document','source':{'type':'text','media_type':"
     "'text/plain','data':'D'}}]}]}",
     "{'max_tokens':5,'messages':[{'role':'user','content':[{'type':'image_url','image_url':{'url':"
     "'data:image/png;base64,aGk='}},{'type':'image_url','image_url':{'url':'http://x/y.png'}},"
     "{'type':'text','text':'D'}]}]}",
     NULL, NULL},
    /* a turn with thoughts and calls, and its results, which come before what else is said */
    {"{'max_tokens':5,'messages':[{'role':'user','content':'w'},{'role':'assistant','content':["
     "{'type':'thinking','thinking':'T','signature':''},{'type':'redacted_thinking','data':'x'},"
     "{'type':'text','text':'A'},{'type':'tool_use','id':'c1','name':'f','input':{'a':1}},"
     "{'type':'tool_use','id':'c2','name':'f','input':{}}]},{'role':'user','content':["
     "{'type':'text','text':'so'},{'type':'tool_result','tool_use_id':'c1','content':'R'},"
     "{'type':'tool_result','tool_use_id':'c2','is_error':true,'content':[{'type':'text','text':"
     "'E'}]}]}]}",
     "{'max_tokens':5,'messages':[{'role':'user','content':'w'},{'role':'assistant','content':'A',"
     "'reasoning_content':'T','tool_calls':[{'id':'c1','type':'function','function':{'name':'f',"
     "'arguments':{'a':1}}},{'id':'c2','type':'function','function':{'name':'f','arguments':{}}}]},"
     "{'role':'tool','tool_call_id':'c1','content':'R'},{'role':'tool','tool_call_id':'c2',"
     "'content':'Error: E'},{'role':'user','content':'so'}]}",
     NULL, NULL},
    {"{'max_tokens':5,'messages':[{'role':'user','content':'w'},{'role':'assistant','content':["
     "{'type':'tool_use','id':'c','name':'f'}]},{'role':'user','content':[{'type':'tool_result',"
     "'tool_use_id':'c'}]}]}",
     "{'max_tokens':5,'messages':[{'role':'user','content':'w'},{'role':'assistant','content':null,"
     "'tool_calls':[{'id':'c','type':'function','function':{'name':'f','arguments':{}}}]},"
     "{'role':'tool','tool_call_id':'c','content':''}]}",
     NULL, NULL},
    /* tools */
    {"{'max_tokens':5,'tools':[{'name':'f','description':'d','input_schema':{'type':'object'}},"
     "{'type':'custom','name':'g','strict':true,'input_schema':{}}],'tool_choice':{'type':'any',"
     "'disable_parallel_tool_use':true},'messages':[{'role':'user','content':'Hi'}]}",
     "{'max_tokens':5,'tools':[{'type':'function','function':{'name':'f','description':'d',"
     "'parameters':{'type':'object'}}},{'type':'function','function':{'name':'g','strict':true,"
     "'parameters':{}}}],'tool_choice':'required','parallel_tool_calls':false,'messages':[{'role':"
     "'user','content':'Hi'}]}",
     NULL, NULL},
    {"{'max_tokens':5,'tool_choice':{'type':'tool','name':'f'},'messages':[{'role':'user',"
     "'content':'Hi'}]}",
     "{'max_tokens':5,'tool_choice':{'type':'function','function':{'name':'f'}},'messages':[{"
     "'role':'user','content':'Hi'}]}",
     NULL, NULL},
    /* thinking, structured output */
    {"{'max_tokens':5,'thinking':{'type':'enabled','budget_tokens':1024},'chat_template_kwargs':{"
     "'x':1},'messages':[{'role':'user','content':'Hi'}]}",
     "{'max_tokens':5,'thinking':{'type':'enabled','budget_tokens':1024},'chat_template_kwargs':{"
     "'x':1},'messages':[{'role':'user','content':'Hi'}]}",
     NULL, NULL},
    {"{'max_tokens':5,'thinking':{'type':'disabled'},'messages':[{'role':'user','content':'Hi'}]}",
     "{'max_tokens':5,'thinking':{'type':'disabled'},"
     "'messages':[{'role':'user','content':'Hi'}]}",
     NULL, NULL},
    {"{'max_tokens':5,'output_config':{'effort':'max','format':{'type':'json_schema','schema':{"
     "'type':'object'}}},'messages':[{'role':'user','content':'Hi'}]}",
     "{'max_tokens':5,'reasoning_effort':'xhigh','response_format':{'type':'json_schema',"
     "'json_schema':{'name':'answer','schema':{'type':'object'}}},'messages':[{'role':'user',"
     "'content':'Hi'}]}",
     NULL, NULL},
    /* faults */
    {"{'messages':[{'role':'user','content':'Hi'}]}", NULL, "max_tokens", "missing"},
    {"{'max_tokens':0,'messages':[{'role':'user','content':'Hi'}]}", NULL, "max_tokens", "0"},
    {"{'max_tokens':'5','messages':[]}", NULL, "max_tokens", "a string"},
    {"{'max_tokens':5}", NULL, "messages", "missing"},
    {"{'max_tokens':5,'messages':[]}", NULL, "messages", "empty"},
    {"{'max_tokens':5,'messages':'x'}", NULL, "messages", "a list"},
    {"{'max_tokens':5,'messages':['x']}", NULL, "messages[0]", "an object"},
    {"{'max_tokens':5,'messages':[{'role':'bot','content':'x'}]}", NULL, "messages[0].role",
     "user or assistant"},
    {"{'max_tokens':5,'messages':[{'role':'user'}]}", NULL, "messages[0].content", "missing"},
    {"{'max_tokens':5,'messages':[{'role':'user','content':[]}]}", NULL, "messages[0].content",
     "empty"},
    {"{'max_tokens':5,'messages':[{'role':'user','content':[{'type':'text'}]}]}", NULL,
     "messages[0].content[0].text", "missing"},
    {"{'max_tokens':5,'messages':[{'role':'user','content':[{'type':'video'}]}]}", NULL,
     "messages[0].content[0].type", "video"},
    {"{'max_tokens':5,'messages':[{'role':'user','content':[{'type':'image','source':{'type':"
     "'file','file_id':'f'}}]}]}",
     NULL, "messages[0].content[0].source", "file"},
    {"{'max_tokens':5,'messages':[{'role':'user','content':[{'type':'image','source':{'type':"
     "'base64','media_type':'image/tiff','data':''}}]}]}",
     NULL, "messages[0].content[0].source.media_type", "image/png"},
    {"{'max_tokens':5,'messages':[{'role':'assistant','content':[{'type':'tool_use','name':'f'}]}]"
     "}",
     NULL, "messages[0].content[0].id", "missing"},
    {"{'max_tokens':5,'messages':[{'role':'assistant','content':[{'type':'tool_use','id':'c','name'"
     ":'f','input':'x'}]}]}",
     NULL, "messages[0].content[0].input", "an object"},
    {"{'max_tokens':5,'messages':[{'role':'user','content':[{'type':'tool_result'}]}]}", NULL,
     "messages[0].content[0].tool_use_id", "missing"},
    {"{'max_tokens':5,'system':5,'messages':[{'role':'user','content':'Hi'}]}", NULL, "system",
     "a number"},
    {"{'max_tokens':5,'system':[{'type':'image'}],'messages':[{'role':'user','content':'Hi'}]}",
     NULL, "system[0].type", "image"},
    {"{'max_tokens':5,'tools':[{'type':'bash_20250124','name':'bash'}],'messages':[{'role':'user',"
     "'content':'Hi'}]}",
     NULL, "tools[0].type", "bash_20250124"},
    {"{'max_tokens':5,'tools':[{'name':'f'}],'messages':[{'role':'user','content':'Hi'}]}", NULL,
     "tools[0].input_schema", "missing"},
    {"{'max_tokens':5,'tool_choice':'auto','messages':[{'role':'user','content':'Hi'}]}", NULL,
     "tool_choice", "an object"},
    {"{'max_tokens':5,'tool_choice':{'type':'all'},'messages':[{'role':'user','content':'Hi'}]}",
     NULL, "tool_choice.type", "any"},
    {"{'max_tokens':5,'tool_choice':{'type':'auto','disable_parallel_tool_use':1},'messages':[{"
     "'role':'user','content':'Hi'}]}",
     NULL, "tool_choice.disable_parallel_tool_use", "a number"},
    {"{'max_tokens':5,'stop_sequences':'x','messages':[{'role':'user','content':'Hi'}]}", NULL,
     "stop_sequences", "a list"},
    {"{'max_tokens':5,'metadata':{'user_id':5},'messages':[{'role':'user','content':'Hi'}]}", NULL,
     "metadata.user_id", "a string"},
    {"{'max_tokens':5,'thinking':{'type':'enabled'},'messages':[{'role':'user','content':'Hi'}]}",
     NULL, "thinking.budget_tokens", "missing"},
    {"{'max_tokens':5,'thinking':{'type':'on'},'messages':[{'role':'user','content':'Hi'}]}", NULL,
     "thinking.type", "adaptive"},
    {"{'max_tokens':5,'output_format':{'type':'json_schema'},'messages':[{'role':'user','content':"
     "'Hi'}]}",
     NULL, "output_format.schema", "missing"},
    {"{'max_tokens':5,'mcp_servers':[{}],'messages':[{'role':'user','content':'Hi'}]}", NULL,
     "mcp_servers", "client"},
};

static void requests_become_chat_requests(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *request = fake_json(cases[i].request);
        json_t *before = json_deep_copy(request);
        struct mxc_dialect d = {.chat = NULL};
        struct mxc_fault fault = {.status = 0};
        enum mxc_code code = mxc_anthropic_read(request, false, &d, &fault);
        if (cases[i].chat) {
            if (code)
                fail_msg("%s: %s", cases[i].request, fault.err.message);
            json_t *wanted = fake_json(cases[i].chat);
            if (!json_equal(d.chat, wanted))
                fail_msg("%s:\n%s", cases[i].request, json_dumps(d.chat, 0));
            json_decref(wanted);
            mxc_dialect_fini(&d);
        } else {
            assert_int_not_equal(code, MXC_OK);
            assert_int_equal(mxc_fault_http(&fault), 400);
            assert_string_equal(fault.param, cases[i].param);
            assert_non_null(strstr(fault.err.message, cases[i].piece));
            assert_int_equal(strncmp(fault.err.message, fault.param, strlen(fault.param)), 0);
        }
        assert_true(json_equal(request, before));
        json_decref(before);
        json_decref(request);
    }
}

static void check_mutated(const json_t *request) {
    struct mxc_dialect d;
    struct mxc_fault fault;
    enum mxc_code code = mxc_anthropic_read(request, false, &d, &fault);
    if (code)
        fake_expect_fault(code, &fault, request);
    else
        mxc_dialect_fini(&d);
}

/* Whatever a value is replaced by: read, or a 400 that names a field. */
static void wrong_values_are_named(void **state) {
    size_t n = 0;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *request = fake_json(cases[i].request);
        n += fake_mutate(request, check_mutated);
        json_decref(request);
    }
    assert_true(n > 2000);
}

static void counting_needs_no_length(void **state) {
    struct mxc_dialect d;
    struct mxc_fault fault;
    json_t *request = fake_json("{'messages':[{'role':'user','content':'Hi'}]}");
    (void)state;
    assert_int_equal(mxc_anthropic_read(request, true, &d, &fault), MXC_OK);
    assert_null(json_object_get(d.chat, "max_tokens"));
    mxc_dialect_fini(&d);
    json_decref(request);
}

static void failed_allocations_are_faults(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *request = fake_json(cases[i].request);
        struct mxc_dialect d;
        struct mxc_fault fault;
        mxc_mem_fail_at(0);
        if (!mxc_anthropic_read(request, false, &d, &fault))
            mxc_dialect_fini(&d);
        uint64_t calls = mxc_mem_calls();
        assert_true(calls > 0 || !cases[i].chat);
        for (uint64_t n = 1; n <= calls; n++) {
            mxc_mem_fail_at(n);
            enum mxc_code code = mxc_anthropic_read(request, false, &d, &fault);
            mxc_mem_fail_at(0);
            if (cases[i].chat)
                assert_int_equal(code, MXC_E_NOMEM);
            assert_int_not_equal(code, MXC_OK);
        }
        json_decref(request);
    }
}

/* What later stages say of the chat request is said of the client's own fields. */
static void faults_speak_of_the_clients_fields(void **state) {
    static const struct {
        const char *chat, *own, *message;
    } rows[] = {{"messages[0].content", "system", "system: m"},
                {"messages[1].content[2]", "messages[0].content[2]", "messages[0].content[2]: m"},
                {"messages[3].tool_calls[1].function.name", "messages[2].tool_calls[1].name",
                 "messages[2].tool_calls[1].name: m"},
                {"messages", "messages", "messages: m"},
                {"stop", "stop_sequences", "stop_sequences: m"},
                {"tools[2].function.parameters.type", "tools[2].input_schema.type",
                 "tools[2].input_schema.type: m"},
                {"tools[2].function.name", "tools[2].name", "tools[2].name: m"},
                {"response_format.json_schema", "output_config.format", "output_config.format: m"},
                {"stopped", "stopped", "stopped: m"},
                {"temperature", "temperature", "temperature: m"},
                {"messages[99]", "messages[0]", "messages[0]: m"}};
    json_t *request =
        fake_json("{'max_tokens':5,'system':'s','messages':[{'role':'user','content':'a'},{'role':"
                  "'assistant','content':'b'},{'role':'user','content':'c'}]}");
    struct mxc_dialect d;
    struct mxc_fault fault;
    (void)state;
    assert_int_equal(mxc_anthropic_read(request, false, &d, &fault), MXC_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        (void)mxc_fault_set(&fault, MXC_E_ARG, rows[i].chat, "%s: m", rows[i].chat);
        mxc_dialect_fault(&d, &fault);
        assert_string_equal(fault.param, rows[i].own);
        assert_string_equal(fault.err.message, rows[i].message);
    }
    (void)mxc_fault_set(&fault, MXC_E_NOMEM, NULL, "out of memory");
    mxc_dialect_fault(&d, &fault);
    assert_string_equal(fault.err.message, "out of memory");
    mxc_dialect_fini(&d);
    json_decref(request);
}

/* ---- answers */

static void start(struct fake *f) {
    struct mxc_anthropic_state *s = mxc_mem_zalloc(1, sizeof *s);
    assert_non_null(s);
    s->n_prompt = 10;
    fake_init(f, &mxc_anthropic_format, "msg_1", s);
}

#define EVENT(name, rest) "event: " name "\ndata: {'type':'" name "'" rest "}\n\n"
#define START(i, b)       EVENT("content_block_start", ",'index':" #i ",'content_block':{" b "}")
#define DELTA(i, delta)   EVENT("content_block_delta", ",'index':" #i ",'delta':{" delta "}")
#define STOP(i)           EVENT("content_block_stop", ",'index':" #i)
#define USAGE                                                                                      \
    "{'input_tokens':6,'cache_creation_input_tokens':0,'cache_read_input_tokens':4,"               \
    "'output_tokens':5}"
#define HEAD                                                                                       \
    EVENT("message_start",                                                                         \
          ",'message':{'id':'msg_1','type':'message','role':'assistant','model':'tiny','content':" \
          "[],'stop_reason':null,'stop_sequence':null,'usage':{'input_tokens':10,"                 \
          "'cache_creation_input_tokens':0,'cache_read_input_tokens':0,'output_tokens':0}}")       \
    EVENT("ping", "")
#define TAIL(reason, stop)                                                                         \
    EVENT("message_delta",                                                                         \
          ",'delta':{'stop_reason':'" reason "','stop_sequence':" stop "},'usage':" USAGE)         \
    EVENT("message_stop", "")

static const struct fake_delta all_kinds[] = {
    {MXC_DELTA_THOUGHT, "Hm", 0, NULL, NULL},   {MXC_DELTA_THOUGHT, "m", 0, NULL, NULL},
    {MXC_DELTA_TEXT, "", 0, NULL, NULL},        {MXC_DELTA_TEXT, "Look: 'x'\n", 0, NULL, NULL},
    {MXC_DELTA_CALL, NULL, 0, "call_a", "f"},   {MXC_DELTA_ARGUMENTS, "{'a':", 0, NULL, NULL},
    {MXC_DELTA_ARGUMENTS, "1}", 0, NULL, NULL}, {MXC_DELTA_CALL, NULL, 1, "call_b", "g"},
    {MXC_DELTA_ARGUMENTS, "{}", 1, NULL, NULL},
};
enum { N_ALL = sizeof all_kinds / sizeof *all_kinds };

static void a_stream_is_a_sequence_of_blocks(void **state) {
    struct fake f;
    (void)state;
    start(&f);
    f.job.format->begin(&f.job, &f.out);
    fake_expect(&f, HEAD);
    fake_say(&f, all_kinds, N_ALL, true);
    fake_finish(&f, MXC_DONE_STOP, -1, true);
    fake_expect(
        &f,
        START(0, "'type':'thinking','thinking':'','signature':''")
            DELTA(0, "'type':'thinking_delta','thinking':'Hm'")
                DELTA(0, "'type':'thinking_delta','thinking':'m'")
                    DELTA(0, "'type':'signature_delta','signature':''") STOP(0)
                        START(1, "'type':'text','text':''")
                            DELTA(1, "'type':'text_delta','text':'Look: \\'x\\'\\n'") STOP(1)
                                START(2, "'type':'tool_use','id':'call_a','name':'f','input':{}")
                                    DELTA(2, "'type':'input_json_delta','partial_json':'{\\'a\\':'")
                                        DELTA(2, "'type':'input_json_delta','partial_json':'1}'")
                                            STOP(2) START(3, "'type':'tool_use','id':'call_b',"
                                                             "'name':'g','input':{}")
                                                DELTA(3, "'type':'input_json_delta',"
                                                         "'partial_json':'{}'") STOP(3)
                                                    TAIL("tool_use", "null"));
    fake_fini(&f);
}

static void a_whole_answer_has_the_same_blocks(void **state) {
    struct fake f;
    (void)state;
    start(&f);
    fake_say(&f, all_kinds, N_ALL, false);
    fake_finish(&f, MXC_DONE_STOP, -1, false);
    fake_expect(&f,
                "{'id':'msg_1','type':'message','role':'assistant','model':'tiny','content':[{"
                "'type':'thinking','thinking':'Hmm','signature':''},{'type':'text','text':'Look: "
                "\\'x\\'\\n'},{'type':'tool_use','id':'call_a','name':'f','input':{'a':1}},{'type':"
                "'tool_use','id':'call_b','name':'g','input':{}}],'stop_reason':'tool_use',"
                "'stop_sequence':null,'usage':" USAGE "}");
    fake_fini(&f);
}

static void stop_reasons(void **state) {
    static const char *const stops[] = {"zz", "END"};
    static const struct fake_delta text = {MXC_DELTA_TEXT, "a", 0, NULL, NULL};
    static const struct {
        enum mxc_done_reason reason;
        int stop;
        const char *wanted;
    } rows[] = {{MXC_DONE_STOP, -1, "'stop_reason':'end_turn','stop_sequence':null"},
                {MXC_DONE_STOP, 1, "'stop_reason':'stop_sequence','stop_sequence':'END'"},
                {MXC_DONE_LENGTH, -1, "'stop_reason':'max_tokens','stop_sequence':null"}};
    (void)state;
    for (size_t i = 0; i < 2 * sizeof rows / sizeof *rows; i++) {
        struct fake f;
        bool stream = i % 2;
        char *wanted = fake_quotes(rows[i / 2].wanted);
        const char *names[2] = {stops[0], stops[1]};
        start(&f);
        f.job.params.stops = names;
        fake_say(&f, &text, 1, stream);
        fake_finish(&f, rows[i / 2].reason, rows[i / 2].stop, stream);
        assert_non_null(strstr(mxc_buf_text(&f.out), wanted));
        free(wanted);
        fake_fini(&f);
    }
}

static void a_call_that_was_cut_off_is_still_json(void **state) {
    struct fake f;
    (void)state;
    start(&f);
    fake_say(&f, all_kinds, 6, false);
    fake_finish(&f, MXC_DONE_LENGTH, -1, false);
    json_t *body = json_loads(mxc_buf_text(&f.out), 0, NULL);
    json_t *call = json_array_get(json_object_get(body, "content"), 2);
    assert_int_equal(json_object_size(json_object_get(call, "input")), 0);
    assert_string_equal(json_string_value(json_object_get(body, "stop_reason")), "max_tokens");
    json_decref(body);
    fake_fini(&f);
}

static void an_error_ends_a_stream(void **state) {
    struct fake f;
    struct mxc_fault fault;
    (void)state;
    start(&f);
    (void)mxc_fault_set(&fault, MXC_E_BUSY, NULL, "no room");
    f.job.format->fault(&f.job, &fault, &f.out);
    f.job.format->end(&f.job, &f.out);
    fake_expect(&f, "event: error\ndata: {'type':'error','error':{'type':'overloaded_error',"
                    "'message':'no room'},'request_id':'req_1'}\n\n");
    fake_say(&f, all_kinds, N_ALL, true);
    fake_expect(&f, "");
    fake_fini(&f);
}

static void an_empty_answer_has_no_blocks(void **state) {
    struct fake f;
    (void)state;
    start(&f);
    fake_finish(&f, MXC_DONE_STOP, -1, true);
    fake_expect(&f, TAIL("end_turn", "null"));
    fake_fini(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_become_chat_requests),
        cmocka_unit_test(wrong_values_are_named),
        cmocka_unit_test(counting_needs_no_length),
        cmocka_unit_test(failed_allocations_are_faults),
        cmocka_unit_test(faults_speak_of_the_clients_fields),
        cmocka_unit_test(a_stream_is_a_sequence_of_blocks),
        cmocka_unit_test(a_whole_answer_has_the_same_blocks),
        cmocka_unit_test(stop_reasons),
        cmocka_unit_test(a_call_that_was_cut_off_is_still_json),
        cmocka_unit_test(an_error_ends_a_stream),
        cmocka_unit_test(an_empty_answer_has_no_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
