// Loads a model's header without its weights and opens contexts of the shapes that stdin lists; the engine's own log is the answer.
// One line a context: n_ctx n_batch n_ubatch n_seq_max flash_attn type_k type_v swa_full kv_unified n_outputs_max
#include "llama.h"
#include <stdio.h>

static void print_log(enum ggml_log_level level, const char * text, void * user) { (void) level; (void) user; fputs(text, stdout); }

int main(int count, char ** arguments) {
    if (count != 2) return 1;
    llama_log_set(print_log, NULL);
    llama_backend_init();
    struct llama_model_params model_params = llama_model_default_params();
    model_params.n_gpu_layers = 0;
    model_params.load_mode = LLAMA_LOAD_MODE_NONE;
    model_params.use_extra_bufts = false;
    model_params.no_alloc = true;
    struct llama_model * model = llama_model_load_from_file(arguments[1], model_params);
    if (!model) return 2;
    unsigned ctx, batch, ubatch, sequences, outputs;
    int flash, k, v, full, unified;
    while (scanf("%u %u %u %u %d %d %d %d %d %u", &ctx, &batch, &ubatch, &sequences, &flash, &k, &v, &full, &unified, &outputs) == 10) {
        struct llama_context_params params = llama_context_default_params();
        params.n_ctx = ctx;
        params.n_batch = batch;
        params.n_ubatch = ubatch;
        params.n_seq_max = sequences;
        params.n_outputs_max = outputs;
        params.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
        params.type_k = (enum ggml_type) k;
        params.type_v = (enum ggml_type) v;
        params.swa_full = full;
        params.kv_unified = unified;
        printf("\n@begin %u %u %u %u %d %d %d %d %d %u\n", ctx, batch, ubatch, sequences, flash, k, v, full, unified, outputs);
        struct llama_context * context = llama_init_from_model(model, params);
        printf("\n@end %d\n", context != NULL);
        fflush(stdout);
        if (context) llama_free(context);
    }
    return 0;
}
