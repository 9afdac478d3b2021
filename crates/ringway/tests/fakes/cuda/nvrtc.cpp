// The fake NVRTC: compiles kernels by g++ into shared libraries that the fake driver loads; see fake.h.
//
// What it has compiled stays beside this library under the hash of source and macros, so that many
// processes of many tests compile once.

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

extern char** environ;

typedef int nvrtcResult;
#define API extern "C" __attribute__((visibility("default"))) nvrtcResult

enum : nvrtcResult {
    SUCCESS = 0,
    OUT_OF_MEMORY = 1,
    PROGRAM_CREATION_FAILURE = 2,
    INVALID_INPUT = 3,
    INVALID_PROGRAM = 4,
    INVALID_OPTION = 5,
    COMPILATION = 6,
    INTERNAL_ERROR = 11,
};

struct Header {
    std::string name, text;
};

struct Program {
    std::string source, name, log, image;
    std::vector<Header> headers;
    bool compiled = false;
    bool has_binary = false; // asked for a real architecture, not a virtual one
};

static std::string own_folder() {
    Dl_info info;
    if (dladdr((void*)own_folder, &info) == 0 || info.dli_fname == nullptr) return "/tmp";
    const std::string path = info.dli_fname;
    const size_t slash = path.rfind('/');
    return slash == std::string::npos ? "." : path.substr(0, slash);
}

static bool read_file(const std::string& path, std::string& text) {
    FILE* file = fopen(path.c_str(), "rb");
    if (file == nullptr) return false;
    char part[65536];
    text.clear();
    for (size_t got; (got = fread(part, 1, sizeof part, file)) > 0;) text.append(part, got);
    const bool good = ferror(file) == 0;
    fclose(file);
    return good;
}

static bool write_file(const std::string& path, const std::string& text) {
    FILE* file = fopen(path.c_str(), "wb");
    if (file == nullptr) return false;
    const bool good = fwrite(text.data(), 1, text.size(), file) == text.size();
    return fclose(file) == 0 && good;
}

static uint64_t hash(uint64_t seed, const std::string& text) { // FNV-1a
    for (unsigned char byte : text) seed = (seed ^ byte) * 0x100000001b3u;
    return (seed ^ 0xff) * 0x100000001b3u;
}

// Runs a command with its words; what it says goes to a file.
static int run(const std::vector<std::string>& words, const std::string& said) {
    std::vector<char*> list;
    for (const std::string& word : words) list.push_back(const_cast<char*>(word.c_str()));
    list.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, said.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    pid_t child;
    const int failed = posix_spawnp(&child, list[0], &actions, nullptr, list.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) return -1;
    int status;
    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR) return -1;
    }
    return status;
}

// --- programs -------------------------------------------------------------------------------------

API nvrtcVersion(int* major, int* minor) {
    if (major == nullptr || minor == nullptr) return INVALID_INPUT;
    *major = 13;
    *minor = 0;
    return SUCCESS;
}

API nvrtcCreateProgram(Program** program, const char* source, const char* name, int headers,
                       const char* const* texts, const char* const* names) {
    if (program == nullptr || source == nullptr || headers < 0) return INVALID_INPUT;
    if (headers > 0 && (texts == nullptr || names == nullptr)) return INVALID_INPUT;
    *program = new Program;
    (*program)->source = source;
    (*program)->name = name != nullptr && *name != 0 ? name : "default_program";
    for (int i = 0; i < headers; i++) (*program)->headers.push_back({names[i], texts[i]});
    return SUCCESS;
}

API nvrtcDestroyProgram(Program** program) {
    if (program == nullptr || *program == nullptr) return INVALID_PROGRAM;
    delete *program;
    *program = nullptr;
    return SUCCESS;
}

// A macro as kernels made ahead have it, where FAKE_NVRTC_ANY is set: any operation, of any number of operands.
static std::string for_any(const std::string& option) {
    const char* any = getenv("FAKE_NVRTC_ANY");
    if (any == nullptr || *any == 0) return option;
    if (option.rfind("-DRW_OP=", 0) == 0) return "-DRW_OP=6";
    return option.rfind("-DRW_OPERANDS=", 0) == 0 ? "-DRW_OPERANDS=0" : option;
}

// The macros among the options, as g++ takes them.
static std::vector<std::string> macros(int count, const char* const* options, bool& real) {
    std::vector<std::string> kept;
    real = false;
    for (int i = 0; i < count; i++) {
        const std::string option = options[i];
        const std::string next = i + 1 < count ? options[i + 1] : "";
        if (option == "-D" || option == "--define-macro") {
            kept.push_back("-D" + next);
            i++;
        } else if (option.rfind("-D", 0) == 0) {
            kept.push_back(for_any(option));
        } else if (option.rfind("--define-macro=", 0) == 0) {
            kept.push_back("-D" + option.substr(15));
        } else if (option.find("arch") != std::string::npos) {
            real = option.find("sm_") != std::string::npos || next.rfind("sm_", 0) == 0;
        }
    }
    return kept;
}

API nvrtcCompileProgram(Program* program, int count, const char* const* options) {
    if (program == nullptr) return INVALID_PROGRAM;
    if (count < 0 || (count > 0 && options == nullptr)) return INVALID_INPUT;
    const std::vector<std::string> defined = macros(count, options, program->has_binary);
    const std::string text = "#include \"" RW_PRELUDE "\"\n#line 1 \"" + program->name + "\"\n" +
                             program->source;
    uint64_t key = hash(0xcbf29ce484222325u, text);
    for (const std::string& option : defined) key = hash(key, option);
    for (const Header& header : program->headers) key = hash(hash(key, header.name), header.text);

    const std::string folder = own_folder();
    char name[32];
    snprintf(name, sizeof name, "/kernel-%016llx", (unsigned long long)key);
    const std::string image = folder + name + ".so";
    program->log.clear();
    if (read_file(image, program->image)) {
        program->compiled = true;
        return SUCCESS;
    }

    std::string work = folder + "/draft-XXXXXX";
    if (mkdtemp(work.data()) == nullptr) return INTERNAL_ERROR;
    std::vector<std::string> words = {"g++", "-x", "c++", "-std=c++17", "-O1", "-fPIC", "-shared",
                                      "-ffp-contract=off", "-fno-gnu-unique", "-DRW_HOST",
                                      "-I" + work};
    words.insert(words.end(), defined.begin(), defined.end());
    words.insert(words.end(), {"-o", work + "/kernel.so", work + "/kernel.cpp"});
    bool written = write_file(work + "/kernel.cpp", text);
    for (const Header& header : program->headers) {
        written = written && write_file(work + "/" + header.name, header.text);
    }
    const int status = written ? run(words, work + "/log") : -1;
    read_file(work + "/log", program->log);
    const bool good = status == 0 && read_file(work + "/kernel.so", program->image);
    if (good) rename((work + "/kernel.so").c_str(), image.c_str());
    for (const Header& header : program->headers) unlink((work + "/" + header.name).c_str());
    for (const char* file : {"/kernel.so", "/kernel.cpp", "/log"}) unlink((work + file).c_str());
    rmdir(work.c_str());
    program->compiled = good;
    if (status == -1) program->log += "g++ cannot be run\n";
    return good ? SUCCESS : COMPILATION;
}

API nvrtcGetProgramLogSize(Program* program, size_t* bytes) {
    if (program == nullptr) return INVALID_PROGRAM;
    if (bytes == nullptr) return INVALID_INPUT;
    *bytes = program->log.size() + 1;
    return SUCCESS;
}

API nvrtcGetProgramLog(Program* program, char* log) {
    if (program == nullptr) return INVALID_PROGRAM;
    if (log == nullptr) return INVALID_INPUT;
    memcpy(log, program->log.c_str(), program->log.size() + 1);
    return SUCCESS;
}

static nvrtcResult image_size(Program* program, size_t* bytes, bool there) {
    if (program == nullptr || !program->compiled) return INVALID_PROGRAM;
    if (bytes == nullptr) return INVALID_INPUT;
    *bytes = there ? program->image.size() : 0;
    return SUCCESS;
}

static nvrtcResult image_copy(Program* program, char* image, bool there) {
    if (program == nullptr || !program->compiled || !there) return INVALID_PROGRAM;
    if (image == nullptr) return INVALID_INPUT;
    memcpy(image, program->image.data(), program->image.size());
    return SUCCESS;
}

// There is a CUBIN for real architectures only; PTX, which the driver takes too, always.
API nvrtcGetCUBINSize(Program* program, size_t* bytes) {
    return image_size(program, bytes, program != nullptr && program->has_binary);
}

API nvrtcGetCUBIN(Program* program, char* image) {
    return image_copy(program, image, program != nullptr && program->has_binary);
}

API nvrtcGetPTXSize(Program* program, size_t* bytes) { return image_size(program, bytes, true); }

API nvrtcGetPTX(Program* program, char* image) { return image_copy(program, image, true); }

extern "C" __attribute__((visibility("default"))) const char* nvrtcGetErrorString(nvrtcResult result) {
    switch (result) {
    case SUCCESS: return "NVRTC_SUCCESS";
    case OUT_OF_MEMORY: return "NVRTC_ERROR_OUT_OF_MEMORY";
    case PROGRAM_CREATION_FAILURE: return "NVRTC_ERROR_PROGRAM_CREATION_FAILURE";
    case INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
    case INVALID_PROGRAM: return "NVRTC_ERROR_INVALID_PROGRAM";
    case INVALID_OPTION: return "NVRTC_ERROR_INVALID_OPTION";
    case COMPILATION: return "NVRTC_ERROR_COMPILATION";
    case INTERNAL_ERROR: return "NVRTC_ERROR_INTERNAL_ERROR";
    default: return "NVRTC_ERROR unknown";
    }
}
