/* OpenAI's responses: requests to chat requests, or a fault that names the field; answers as
 * events, byte for byte. The store has a test of its own. */
#define _GNU_SOURCE
#include "fake.h"

#include "base/mem.h"
#include "server/fault.h"
#include "server/responses.h"

#include <stdlib.h>
#include <string.h>

/* ---- requests */

#define USER(text) "{'role':'user','content':'" text "'}"
static const struct {
    const char *request, *chat; /* chat NULL: the fault's field and a piece of its message */
    const char *param, *piece;
} cases[] = {
    {"{'input':'Hi'}", "{'messages':[" USER("Hi") "]}", NULL, NULL},
    {"{'input':'Hi','model':'m','stream':true,'temperature':0.5,'top_p':0.9,'seed':4,"
     "'max_output_tokens':7,'instructions':'Be','reasoning':{'effort':'low','summary':'auto'},"
     "'parallel_tool_calls':false,'metadata':{'a':'b'},'user':'u','prompt_cache_key':'k',"
     "'background':false,'truncation':'disabled','service_tier':'auto','unknown':1}",
     "{'messages':[{'role':'system','content':'Be'}," USER(
         "Hi") "],'model':'m','stream':true,"
               "'temperature':0.5,'top_p':0.9,'seed':4,'max_completion_tokens':7,'reasoning_effort'"
               ":'low',"
               "'parallel_tool_calls':false}",
     NULL, NULL},
    /* messages, with and without a type; parts */
    {"{'input':[" USER(
         "Hi") ",{'type':'message','role':'developer','content':'D'},{'role':'user',"
               "'content':[{'type':'input_text','text':'a'},{'type':'input_image','image_url':"
               "'data:image/png;base64,aGk=','detail':'low'}]}]}",
     "{'messages':[" USER("Hi") ",{'role':'developer','content':'D'},{'role':'user','content':[{"
                                "'type':'text','text':'a'},{'type':'image_url','image_url':{'url':"
                                "'data:image/png;base64,aGk='},'detail':'low'}]}]}",
     NULL, NULL},
    /* one turn of the assistant: thoughts, text, calls; then the results */
    {"{'input':[" USER(
         "w") ",{'type':'reasoning','id':'rs','summary':[{'type':'summary_text',"
              "'text':'S'}],'content':[{'type':'reasoning_text','text':'T'}]},{'type':'message','"
              "role':"
              "'assistant','content':[{'type':'output_text','text':'A','annotations':[]}]},{'type':"
              "'function_call','call_id':'c1','name':'f','arguments':'{}'},{'type':'function_call',"
              "'call_id':'c2','name':'g','arguments':''},{'type':'function_call_output','call_id':'"
              "c2',"
              "'output':'R2'},{'type':'function_call_output','call_id':'c1','output':[{'type':'"
              "input_text',"
              "'text':'R1'}]}," USER("so") "]}",
     "{'messages':[" USER(
         "w") ",{'role':'assistant','content':'A','reasoning_content':'T',"
              "'tool_calls':[{'id':'c1','type':'function','function':{'name':'f','arguments':'{}'}}"
              ",{'id':"
              "'c2','type':'function','function':{'name':'g','arguments':''}}]},{'role':'tool',"
              "'tool_call_id':'c2','content':'R2'},{'role':'tool','tool_call_id':'c1','content':'"
              "R1'}," USER("so") "]}",
     NULL, NULL},
    {"{'input':[{'role':'assistant','content':'a'},{'role':'assistant','content':[{'type':"
     "'refusal','refusal':'no'}]},{'type':'reasoning','summary':[{'text':'S'}]}," USER("x") "]}",
     "{'messages':[{'role':'assistant','content':'a'},{'role':'assistant','content':'no',"
     "'reasoning_content':'S'}," USER("x") "]}",
     NULL, NULL},
    /* thoughts that nothing followed */
    {"{'input':[{'type':'reasoning','summary':[{'text':'S'}]}," USER("x") "]}",
     "{'messages':[" USER("x") "]}", NULL, NULL},
    {"{'input':'x','tools':[{'type':'function','name':'f','parameters':{}}],'tool_choice':{'type':"
     "'function','name':'f'}}",
     "{'messages':[" USER("x") "],'tools':[{'type':'function','name':'f','parameters':{}}],"
                               "'tool_choice':{'type':'function','name':'f'}}",
     NULL, NULL},
    {"{'input':'x','text':{'format':{'type':'json_schema','name':'p','strict':true,'schema':{"
     "'type':'object'}},'verbosity':'medium'}}",
     "{'messages':[" USER("x") "],'response_format':{'type':'json_schema','json_schema':{'name':"
                               "'p','schema':{'type':'object'}}}}",
     NULL, NULL},
    {"{'input':'x','text':{'format':{'type':'json_object'}}}",
     "{'messages':[" USER("x") "],'response_format':{'type':'json_object'}}", NULL, NULL},
    {"{'input':'x','text':{'format':{'type':'text'}},'include':['reasoning.encrypted_content']}",
     "{'messages':[" USER("x") "]}", NULL, NULL},
    {"{'input':'x','include':['message.output_text.logprobs'],'top_logprobs':3}",
     "{'messages':[" USER("x") "],'logprobs':true,'top_logprobs':3}", NULL, NULL},
    /* faults */
    {"{}", NULL, "input", "missing"},
    {"{'input':5}", NULL, "input", "a number"},
    {"{'input':[]}", NULL, "input", "empty"},
    {"{'input':['x']}", NULL, "input[0]", "a string"},
    {"{'input':[{'type':'item_reference','id':'x'}]}", NULL, "input[0].type", "item_reference"},
    {"{'input':[{'content':'x'}]}", NULL, "input[0].role", "missing"},
    {"{'input':[{'role':'bot','content':'x'}]}", NULL, "input[0].role", "developer"},
    {"{'input':[{'role':'user'}]}", NULL, "input[0].content", "missing"},
    {"{'input':[{'role':'user','content':[]}]}", NULL, "input[0].content", "empty"},
    {"{'input':[{'role':'user','content':[{'type':'input_file'}]}]}", NULL,
     "input[0].content[0].type", "input_file"},
    {"{'input':[{'role':'user','content':[{'type':'input_image','file_id':'f'}]}]}", NULL,
     "input[0].content[0].file_id", "image_url"},
    {"{'input':[{'role':'user','content':[{'type':'input_text','text':5}]}]}", NULL,
     "input[0].content[0].text", "a number"},
    {"{'input':[{'type':'function_call','name':'f','arguments':'{}'}]}", NULL, "input[0].call_id",
     "missing"},
    {"{'input':[{'type':'function_call','call_id':'c','name':'f','arguments':{}}]}", NULL,
     "input[0].arguments", "an object"},
    {"{'input':[{'type':'function_call_output','call_id':'c'}]}", NULL, "input[0].output",
     "missing"},
    {"{'input':[{'type':'reasoning','summary':'x'}]}", NULL, "input[0].summary", "a list"},
    {"{'input':'x','instructions':['a']}", NULL, "instructions", "a list"},
    {"{'input':'x','max_output_tokens':0}", NULL, "max_output_tokens", "0"},
    {"{'input':'x','text':'json'}", NULL, "text", "a string"},
    {"{'input':'x','text':{'format':{'type':'xml'}}}", NULL, "text.format.type", "json_schema"},
    {"{'input':'x','text':{'format':{'type':'json_schema','name':'p'}}}", NULL,
     "text.format.schema", "missing"},
    {"{'input':'x','text':{'verbosity':'low'}}", NULL, "text.verbosity", "instructions"},
    {"{'input':'x','reasoning':{'effort':5}}", NULL, "reasoning.effort", "a number"},
    {"{'input':'x','reasoning':{'summary':'concise'}}", NULL, "reasoning.summary", "auto"},
    {"{'input':'x','include':['all']}", NULL, "include[0]", "all"},
    {"{'input':'x','top_logprobs':21}", NULL, "top_logprobs", "21"},
    {"{'input':'x','metadata':{'a':1}}", NULL, "metadata", "a string"},
    {"{'input':'x','store':'yes'}", NULL, "store", "a string"},
    {"{'input':'x','background':true}", NULL, "background", "stream"},
    {"{'input':'x','truncation':'auto'}", NULL, "truncation", "disabled"},
    {"{'input':'x','conversation':'c'}", NULL, "conversation", "previous_response_id"},
    {"{'input':'x','prompt':{'id':'p'}}", NULL, "prompt", "instructions"},
};

static void requests_become_chat_requests(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *request = fake_json(cases[i].request), *before = json_deep_copy(request);
        struct mxc_responses_request q = {.echo = NULL};
        struct mxc_fault fault = {.status = 0};
        enum mxc_code code = mxc_responses_read(request, NULL, &q, &fault);
        if (cases[i].chat) {
            if (code)
                fail_msg("%s: %s", cases[i].request, fault.err.message);
            json_t *wanted = fake_json(cases[i].chat);
            if (!json_equal(q.dialect.chat, wanted))
                fail_msg("%s:\n%s", cases[i].request, json_dumps(q.dialect.chat, 0));
            json_decref(wanted);
            mxc_responses_request_fini(&q);
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
    struct mxc_responses_request q;
    struct mxc_fault fault;
    json_t *list = json_object_get(request, "input");
    enum mxc_code code = mxc_responses_read(request, NULL, &q, &fault);
    if (code)
        fake_expect_fault(code, &fault, request);
    else
        mxc_responses_request_fini(&q);
    /* the same as a conversation from the store, which could be of another version */
    if (!json_is_array(list))
        return;
    code = mxc_responses_read(request, list, &q, &fault);
    if (code)
        fake_expect_fault(code, &fault, request);
    else
        mxc_responses_request_fini(&q);
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
    assert_true(n > 1500);
}

static void history_comes_first(void **state) {
    json_t *history = fake_json(
        "[{'type':'message','role':'user','content':[{'type':'input_text','text':'q'}]},{'type':"
        "'message','role':'assistant','content':[{'type':'output_text','text':'a'}]}]");
    json_t *request = fake_json("{'input':'more','instructions':'Be'}");
    json_t *wanted = fake_json(
        "[{'role':'system','content':'Be'}," USER("q") ",{'role':'assistant'"
                                                       ",'content':'a'}," USER("more") "]");
    json_t *items = fake_json("[{'type':'message','role':'user','content':'more'}]");
    struct mxc_responses_request q;
    struct mxc_fault fault;
    (void)state;
    assert_int_equal(mxc_responses_read(request, history, &q, &fault), MXC_OK);
    assert_true(json_equal(q.dialect.messages, wanted));
    assert_true(json_equal(q.items, items)); /* the own ones only */
    assert_true(q.store);
    /* what is said of the chat request */
    static const struct {
        const char *chat, *own;
    } rows[] = {{"messages[0].content", "instructions"},
                {"messages[2].tool_calls[0]", "previous_response_id"},
                {"messages[3].content", "input[0].content"},
                {"messages", "input"},
                {"max_completion_tokens", "max_output_tokens"},
                {"reasoning_effort", "reasoning.effort"},
                {"response_format.json_schema", "text.format"},
                {"tools[1].function.name", "tools[1].name"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        (void)mxc_fault_set(&fault, MXC_E_ARG, rows[i].chat, "%s: m", rows[i].chat);
        mxc_dialect_fault(&q.dialect, &fault);
        assert_string_equal(fault.param, rows[i].own);
        assert_int_equal(strncmp(fault.err.message, rows[i].own, strlen(rows[i].own)), 0);
    }
    mxc_responses_request_fini(&q);
    json_decref(history);
    json_decref(request);
    json_decref(wanted);
    json_decref(items);
}

static void failed_allocations_are_faults(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *request = fake_json(cases[i].request);
        struct mxc_responses_request q;
        struct mxc_fault fault;
        mxc_mem_fail_at(0);
        if (!mxc_responses_read(request, NULL, &q, &fault))
            mxc_responses_request_fini(&q);
        uint64_t calls = mxc_mem_calls();
        assert_true(calls > 0 || !cases[i].chat);
        for (uint64_t n = 1; n <= calls; n++) {
            mxc_mem_fail_at(n);
            enum mxc_code code = mxc_responses_read(request, NULL, &q, &fault);
            mxc_mem_fail_at(0);
            assert_int_not_equal(code, MXC_OK);
            if (cases[i].chat)
                assert_int_equal(code, MXC_E_NOMEM);
        }
        json_decref(request);
    }
}

/* ---- answers */

static void start(struct fake *f, const char *request_text) {
    json_t *request = fake_json(request_text);
    struct mxc_responses_request q;
    struct mxc_fault fault;
    assert_int_equal(mxc_responses_read(request, NULL, &q, &fault), MXC_OK);
    q.store = false;
    struct mxc_responses_state *s = mxc_responses_state_new(NULL, &q);
    assert_non_null(s);
    mxc_responses_request_fini(&q);
    fake_init(f, &mxc_responses_format, "resp_1", s);
    json_decref(request);
}

#define EVENT(name, n, rest)                                                                       \
    "event: response." name "\ndata: {'type':'response." name "','sequence_number':" #n "," rest   \
    "}\n\n"
#define AT(id, i)   "'item_id':'" id "','output_index':" #i
#define PART(id, i) AT(id, i) ",'content_index':0"
#define RESPONSE(status, error, details, output, usage)                                            \
    "{'id':'resp_1','object':'response','created_at':1700000000,'status':'" status "','background" \
    "':false,'model':'tiny','service_tier':'default','text':{'format':{'type':'text'}},"           \
    "'reasoning':{'effort':null,'summary':null},'top_logprobs':0,'metadata':{'k':'v'},"            \
    "'instructions':null,'max_output_tokens':null,'parallel_tool_calls':true,"                     \
    "'previous_response_id':null,'temperature':0.8,'top_p':0.9,'tool_choice':'auto','tools':[],"   \
    "'user':null,'truncation':'disabled','store':false,'error':" error                             \
    ",'incomplete_details':" details ",'output':" output ",'usage':" usage "}"
#define USAGE                                                                                      \
    "{'input_tokens':10,'input_tokens_details':{'cached_tokens':4},'output_tokens':5,"             \
    "'output_tokens_details':{'reasoning_tokens':0},'total_tokens':15}"
#define REQUEST         "{'input':'x','top_p':0.9,'metadata':{'k':'v'}}"
#define TEXT_PART(text) "{'type':'output_text','annotations':[],'logprobs':[],'text':'" text "'}"
#define THOUGHT_ITEM(id, status)                                                                   \
    "{'id':'" id "','type':'reasoning','summary':[],'content':[{'type':'reasoning_text','text':"   \
    "'Hmm'}],'status':'" status "'}"
#define TEXT_ITEM(id, status)                                                                      \
    "{'id':'" id "','type':'message','status':'" status                                            \
    "','role':'assistant','content':[" TEXT_PART("So it") "]}"
#define CALL_ITEM(id, status, arguments)                                                           \
    "{'id':'" id "','type':'function_call','status':'" status                                      \
    "','call_id':'call_a','name':'f','arguments':'" arguments "'}"

static const struct fake_delta all_kinds[] = {
    {MXC_DELTA_THOUGHT, "Hm", 0, NULL, NULL},      {MXC_DELTA_THOUGHT, "m", 0, NULL, NULL},
    {MXC_DELTA_TEXT, "", 0, NULL, NULL},           {MXC_DELTA_TEXT, "So ", 0, NULL, NULL},
    {MXC_DELTA_TEXT, "it", 0, NULL, NULL},         {MXC_DELTA_CALL, NULL, 0, "call_a", "f"},
    {MXC_DELTA_ARGUMENTS, "{'a':", 0, NULL, NULL}, {MXC_DELTA_ARGUMENTS, "1}", 0, NULL, NULL},
};
enum { N_ALL = sizeof all_kinds / sizeof *all_kinds };

static void a_stream_has_items_in_order(void **state) {
    struct fake f;
    (void)state;
    start(&f, REQUEST);
    f.job.format->begin(&f.job, &f.out);
    fake_expect(
        &f, EVENT("created", 0, "'response':" RESPONSE("in_progress", "null", "null", "[]", "null"))
                EVENT("in_progress", 1,
                      "'response':" RESPONSE("in_progress", "null", "null", "[]", "null")));
    fake_say(&f, all_kinds, 3, true);
    fake_expect(
        &f,
        EVENT("output_item.added", 2,
              "'output_index':0,'item':{'id':'rs_1o0','type':'reasoning','summary':[],'content':[],"
              "'status':'in_progress'}")
            EVENT("content_part.added", 3,
                  PART("rs_1o0", 0) ",'part':{'type':'reasoning_text','text':''}")
                EVENT("reasoning_text.delta", 4, PART("rs_1o0", 0) ",'delta':'Hm'")
                    EVENT("reasoning_text.delta", 5, PART("rs_1o0", 0) ",'delta':'m'"));
    fake_say(&f, all_kinds + 3, 2, true);
    fake_expect(
        &f,
        EVENT("reasoning_text.done", 6, PART("rs_1o0", 0) ",'text':'Hmm'")
            EVENT("content_part.done", 7,
                  PART("rs_1o0", 0) ",'part':{'type':'reasoning_text','text':'Hmm'}")
                EVENT("output_item.done", 8,
                      "'output_index':0,'item':" THOUGHT_ITEM("rs_1o0", "completed"))
                    EVENT("output_item.added", 9,
                          "'output_index':1,'item':{'id':'msg_1o1','type':'message','status':"
                          "'in_progress','role':'assistant','content':[]}")
                        EVENT("content_part.added", 10, PART("msg_1o1", 1) ",'part':" TEXT_PART(""))
                            EVENT("output_text.delta", 11,
                                  PART("msg_1o1", 1) ",'delta':'So ','logprobs':[]")
                                EVENT("output_text.delta", 12,
                                      PART("msg_1o1", 1) ",'delta':'it','logprobs':[]"));
    fake_say(&f, all_kinds + 5, 3, true);
    fake_expect(&f,
                EVENT("output_text.done", 13, PART("msg_1o1", 1) ",'text':'So it','logprobs':[]")
                    EVENT("content_part.done", 14, PART("msg_1o1", 1) ",'part':" TEXT_PART("So it"))
                        EVENT("output_item.done", 15,
                              "'output_index':1,'item':" TEXT_ITEM("msg_1o1", "completed"))
                            EVENT("output_item.added", 16,
                                  "'output_index':2,'item':" CALL_ITEM("fc_1o2", "in_progress", ""))
                                EVENT("function_call_arguments.delta", 17,
                                      AT("fc_1o2", 2) ",'delta':'{\\'a\\':'")
                                    EVENT("function_call_arguments.delta", 18,
                                          AT("fc_1o2", 2) ",'delta':'1}'"));
    fake_finish(&f, MXC_DONE_STOP, -1, true);
    fake_expect(
        &f, EVENT("function_call_arguments.done", 19,
                  AT("fc_1o2", 2) ",'name':'f','arguments':'{\\'a\\':1}'")
                EVENT("output_item.done", 20,
                      "'output_index':2,'item':" CALL_ITEM("fc_1o2", "completed", "{\\'a\\':1}"))
                    EVENT("completed", 21,
                          "'response':" RESPONSE(
                              "completed", "null", "null",
                              "[" THOUGHT_ITEM("rs_1o0", "completed") "," TEXT_ITEM(
                                  "msg_1o1", "completed") "," CALL_ITEM("fc_1o2", "completed",
                                                                        "{\\'a\\':1}") "]",
                              USAGE)));
    fake_fini(&f);
}

static void a_whole_answer_is_the_streams_last_word(void **state) {
    struct fake f;
    (void)state;
    start(&f, REQUEST);
    fake_say(&f, all_kinds, N_ALL, false);
    fake_finish(&f, MXC_DONE_STOP, -1, false);
    fake_expect(&f, RESPONSE("completed", "null", "null",
                             "[" THOUGHT_ITEM("rs_1o0", "completed") "," TEXT_ITEM(
                                 "msg_1o1", "completed") "," CALL_ITEM("fc_1o2", "completed",
                                                                       "{\\'a\\':1}") "]",
                             USAGE));
    fake_fini(&f);
}

static void length_is_incomplete(void **state) {
    struct fake f;
    (void)state;
    start(&f, REQUEST);
    fake_say(&f, all_kinds, 5, false);
    fake_finish(&f, MXC_DONE_LENGTH, -1, false);
    fake_expect(&f, RESPONSE("incomplete", "null", "{'reason':'max_output_tokens'}",
                             "[" THOUGHT_ITEM("rs_1o0", "completed") "," TEXT_ITEM(
                                 "msg_1o1", "incomplete") "]",
                             USAGE));
    fake_fini(&f);
    /* in the middle of a thought there is no message */
    for (int stream = 0; stream < 2; stream++) {
        start(&f, REQUEST);
        fake_say(&f, all_kinds, 2, stream);
        mxc_buf_clear(&f.out);
        fake_finish(&f, MXC_DONE_LENGTH, -1, stream);
        char *wanted = fake_quotes("'output':[" THOUGHT_ITEM("rs_1o0", "incomplete") "],");
        assert_non_null(strstr(mxc_buf_text(&f.out), wanted));
        free(wanted);
        fake_fini(&f);
    }
}

static void an_empty_answer_is_an_empty_message(void **state) {
    (void)state;
    for (int stream = 0; stream < 2; stream++) {
        struct fake f;
        start(&f, REQUEST);
        fake_finish(&f, MXC_DONE_STOP, -1, stream);
        char *wanted = fake_quotes("'output':[{'id':'msg_1o0','type':'message','status':'completed'"
                                   ",'role':'assistant','content':[" TEXT_PART("") "]}],");
        assert_non_null(strstr(mxc_buf_text(&f.out), wanted));
        free(wanted);
        fake_fini(&f);
    }
}

static void failure_and_cancelling_end_a_stream(void **state) {
    struct fake f;
    struct mxc_fault fault;
    (void)state;
    (void)mxc_fault_set(&fault, MXC_E_BACKEND, NULL, "it broke");
    start(&f, REQUEST);
    f.job.format->fault(&f.job, &fault, &f.out);
    f.job.format->end(&f.job, &f.out);
    fake_say(&f, all_kinds, 2, true); /* too late */
    char *zero = fake_quotes(EVENT(
        "failed", 0,
        "'response':" RESPONSE("failed", "{'code':'server_error','message':'it broke'}", "null",
                               "[]",
                               "{'input_tokens':0,'input_tokens_details':{'cached_tokens':0},"
                               "'output_tokens':0,'output_tokens_details':{'reasoning_tokens':0},"
                               "'total_tokens':0}")));
    assert_string_equal(mxc_buf_text(&f.out), zero);
    free(zero);
    fake_fini(&f);
    start(&f, REQUEST);
    fake_say(&f, all_kinds + 3, 2, true);
    atomic_store(&((struct mxc_responses_state *)f.job.state)->cancelled, true);
    mxc_buf_clear(&f.out);
    f.job.format->fault(&f.job, &fault, &f.out);
    char *wanted = fake_quotes("'status':'cancelled'"),
         *item = fake_quotes(TEXT_ITEM("msg_1o0", "incomplete"));
    assert_non_null(strstr(mxc_buf_text(&f.out), "event: response.incomplete\n"));
    assert_non_null(strstr(mxc_buf_text(&f.out), wanted));
    assert_non_null(strstr(mxc_buf_text(&f.out), item));
    free(wanted);
    free(item);
    fake_fini(&f);
}

/* Text, a call and text again are three items, each with its own text. */
static void texts_around_a_call_are_two_messages(void **state) {
    static const struct fake_delta around[] = {{MXC_DELTA_TEXT, "one", 0, NULL, NULL},
                                               {MXC_DELTA_CALL, NULL, 0, "call_a", "f"},
                                               {MXC_DELTA_ARGUMENTS, "{}", 0, NULL, NULL},
                                               {MXC_DELTA_TEXT, "two", 0, NULL, NULL}};
    struct fake f;
    (void)state;
    start(&f, REQUEST);
    fake_say(&f, around, 4, true);
    fake_finish(&f, MXC_DONE_STOP, -1, true);
    char *first = fake_quotes("'output_index':0,'content_index':0,'text':'one'");
    char *second = fake_quotes("'item_id':'msg_1o2','output_index':2,'content_index':0,'text':"
                               "'two'");
    assert_non_null(strstr(mxc_buf_text(&f.out), first));
    assert_non_null(strstr(mxc_buf_text(&f.out), second));
    free(first);
    free(second);
    fake_fini(&f);
}

static void the_answer_repeats_the_request(void **state) {
    struct fake f;
    (void)state;
    start(&f, "{'input':'x','temperature':0.3,'top_p':1,'instructions':'Be','max_output_tokens':9,"
              "'tools':[{'type':'function','name':'f','parameters':{}}],'tool_choice':'none',"
              "'reasoning':{'effort':'high'},'text':{'format':{'type':'json_object'}}}");
    fake_finish(&f, MXC_DONE_STOP, -1, false);
    json_t *body = json_loads(mxc_buf_text(&f.out), 0, NULL);
    json_t *wanted = fake_json(
        "{'temperature':0.3,'top_p':1,'instructions':'Be','max_output_tokens':9,'tools':[{'type':"
        "'function','name':'f','parameters':{}}],'tool_choice':'none','reasoning':{'effort':'high',"
        "'summary':null},'text':{'format':{'type':'json_object'}}}");
    const char *key;
    const json_t *value;
    json_object_foreach(wanted, key, value) {
        if (!json_equal(json_object_get(body, key), value))
            fail_msg("%s", key);
    }
    json_decref(wanted);
    json_decref(body);
    fake_fini(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_become_chat_requests),
        cmocka_unit_test(wrong_values_are_named),
        cmocka_unit_test(history_comes_first),
        cmocka_unit_test(failed_allocations_are_faults),
        cmocka_unit_test(a_stream_has_items_in_order),
        cmocka_unit_test(a_whole_answer_is_the_streams_last_word),
        cmocka_unit_test(length_is_incomplete),
        cmocka_unit_test(an_empty_answer_is_an_empty_message),
        cmocka_unit_test(failure_and_cancelling_end_a_stream),
        cmocka_unit_test(texts_around_a_call_are_two_messages),
        cmocka_unit_test(the_answer_repeats_the_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
