/* Loaded into a program by LD_PRELOAD: whatever in it, Python or C, turns to the network is refused, and a line about it
   goes to the file that $NETWORK_LOG names.  Sockets between processes of one machine (AF_UNIX) and the kernel's own
   (AF_NETLINK) are no network.  With $NETWORK_LOOPBACK, this machine may be reached at 127.0.0.0/8 and ::1. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void note(const char *call, const char *what) {
    const char *log = getenv("NETWORK_LOG");
    char line[512];
    if (!log) return;
    int file = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (file < 0) return;
    int length = snprintf(line, sizeof line, "%s %s\n", call, what);
    if (write(file, line, length < (int)sizeof line ? length : (int)sizeof line - 1) < 0) abort();
    close(file);
}

static int is_here(const struct sockaddr *address) {
    if (!getenv("NETWORK_LOOPBACK")) return 0;
    if (address->sa_family == AF_INET) return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

static int is_network(const char *call, const struct sockaddr *address) {
    char family[32];
    if (!address || address->sa_family == AF_UNIX || address->sa_family == AF_NETLINK) return 0;
    if (address->sa_family == AF_UNSPEC || is_here(address)) return 0; /* AF_UNSPEC takes an address back */
    snprintf(family, sizeof family, "family %d", address->sa_family);
    note(call, family);
    errno = ENETUNREACH;
    return 1;
}

int connect(int socket, const struct sockaddr *address, socklen_t length) {
    static int (*real)(int, const struct sockaddr *, socklen_t);
    if (!real) real = dlsym(RTLD_NEXT, "connect");
    return is_network("connect", address) ? -1 : real(socket, address, length);
}

ssize_t sendto(int socket, const void *data, size_t size, int flags, const struct sockaddr *address, socklen_t length) {
    static ssize_t (*real)(int, const void *, size_t, int, const struct sockaddr *, socklen_t);
    if (!real) real = dlsym(RTLD_NEXT, "sendto");
    return is_network("sendto", address) ? -1 : real(socket, data, size, flags, address, length);
}

ssize_t sendmsg(int socket, const struct msghdr *message, int flags) {
    static ssize_t (*real)(int, const struct msghdr *, int);
    if (!real) real = dlsym(RTLD_NEXT, "sendmsg");
    return is_network("sendmsg", message->msg_name) ? -1 : real(socket, message, flags);
}

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    static int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    if (!real) real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (getenv("NETWORK_LOOPBACK") && name && (!strcmp(name, "127.0.0.1") || !strcmp(name, "::1")))
        return real(name, service, hints, found);
    note("getaddrinfo", name ? name : "-");
    return EAI_FAIL;
}

struct hostent *gethostbyname(const char *name) {
    note("gethostbyname", name);
    h_errno = NO_RECOVERY;
    return NULL;
}
