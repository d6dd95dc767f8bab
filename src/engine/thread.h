/* Loop: the one thread that steps engines. Several engines (models) share it and take turns, so
 * that they share one compute team without contention. It sleeps while no engine has work. Thread
 * rules: every function from any thread, but new/free/add/call not from inside an event. */
#ifndef MXC_ENGINE_THREAD_H
#define MXC_ENGINE_THREAD_H

#include "engine/engine.h"

struct mxc_loop;

enum mxc_code mxc_loop_new(struct mxc_loop **loop, struct mxc_err *err) MXC_MUST;
/* Ends the thread after the step it is in. Engines are the caller's again. */
void mxc_loop_free(struct mxc_loop *loop);
/* Wakes the thread: the function for mxc_engine_options.wake, with the loop as its user. */
void mxc_loop_wake(void *loop);
/* From now on only the loop steps the engine, until remove returns. One whose device was lost is
 * not stepped any more. */
enum mxc_code mxc_loop_add(struct mxc_loop *loop, struct mxc_engine *engine,
                           struct mxc_err *err) MXC_MUST;
void mxc_loop_remove(struct mxc_loop *loop, struct mxc_engine *engine);
/* Runs fn(arg) on the loop's thread between two steps and waits for it. */
void mxc_loop_call(struct mxc_loop *loop, void (*fn)(void *arg), void *arg);

#endif
