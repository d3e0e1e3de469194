/* Stands in for bcryptprimitives.dll, which Wine 8 lacks and every Rust program for Windows loads.
 * Only what the standard library asks of it: random bytes. The system's own generator makes them. */
#include <windows.h>
#include <ntsecapi.h>

/* The generator takes a length of 32 bits. */
#define MOST_AT_ONCE 0x40000000u

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE bytes, SIZE_T length)
{
    SIZE_T done = 0;
    while (done < length) {
        SIZE_T left = length - done;
        ULONG part = (ULONG)(left < MOST_AT_ONCE ? left : MOST_AT_ONCE);
        if (!RtlGenRandom(bytes + done, part))
            return FALSE;
        done += part;
    }
    return TRUE;
}
