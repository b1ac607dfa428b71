// What the sketch of the guide and the library WebSockets need of the Arduino core of the ESP32, on Linux: strings, time,
// the serial port as standard output, and TCP. The network is that of the machine, and the server the one of the test.
#pragma once
#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <string>

#define ESP_ARDUINO_VERSION_VAL(major, minor, patch) (((major) << 16) | ((minor) << 8) | (patch))
#define ESP_ARDUINO_VERSION ESP_ARDUINO_VERSION_VAL(3, 0, 7)
#define bit(b) (1UL << (b))

class String : public std::string {
  public:
    using std::string::string;
    String() {}
    String(const std::string &text) : std::string(text) {}
    String(const char *text) : std::string(text ? text : "") {}
    String(int number) : std::string(std::to_string(number)) {}
    String substring(int from) const { return substr(from); }
    String substring(int from, int to) const { return substr(from, to - from); }
    int indexOf(char wanted, int from = 0) const { return position(find(wanted, from)); }
    int indexOf(const String &wanted, int from = 0) const { return position(find(wanted, from)); }
    long toInt() const { return atol(c_str()); }
    bool equalsIgnoreCase(const String &other) const { return strcasecmp(c_str(), other.c_str()) == 0; }
    bool startsWith(const String &start) const { return compare(0, start.size(), start) == 0; }
    void trim() {
        size_t from = find_first_not_of(" \t\r\n"), to = find_last_not_of(" \t\r\n");
        assign(from == npos ? "" : substr(from, to - from + 1));
    }
    void remove(size_t from, size_t count = npos) { erase(from, count); }

  private:
    static int position(size_t at) { return at == npos ? -1 : static_cast<int>(at); }
};

inline String operator+(const String &one, const String &other) { return String(one).append(other); }
inline String operator+(const String &one, const char *other) { return String(one).append(other); }

inline unsigned long millis() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}
inline void delay(unsigned long milliseconds) { usleep(milliseconds * 1000); }
inline void yield() {}
inline long random(long below) { return ::rand() % below; }
inline void randomSeed(unsigned long seed) { ::srand(seed); }

struct SerialPort {
    void begin(unsigned long) {}
    int printf(const char *format, ...) {
        va_list arguments;
        va_start(arguments, format);
        int written = vprintf(format, arguments);
        va_end(arguments);
        fflush(stdout);
        return written;
    }
};
extern SerialPort Serial;

struct EspClass {
    uint32_t getFreeHeap() { return 1 << 20; }
};
extern EspClass ESP;

class IPAddress {
  public:
    uint8_t operator[](int) const { return 0; }
    String toString() const { return "0.0.0.0"; }
};

enum wl_status_t { WL_CONNECTED = 3 };

struct WiFiClass {
    void begin(const char *, const char *) {}
    wl_status_t status() { return WL_CONNECTED; }
};
extern WiFiClass WiFi;

class WiFiClient {
  public:
    virtual ~WiFiClient() { stop(); }
    // Connects to the server of the test, whatever the sketch says.
    int connect(const char *, uint16_t, int32_t = 0) {
        socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
        sockaddr_in server{};
        server.sin_family = AF_INET;
        server.sin_port = htons(atoi(getenv("TIDEGATE_TEST_PORT")));
        inet_pton(AF_INET, "127.0.0.1", &server.sin_addr);
        return ::connect(socket_, reinterpret_cast<sockaddr *>(&server), sizeof server) == 0;
    }
    uint8_t connected() {
        if (socket_ < 0) return 0;
        char byte;
        ssize_t found = recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        return found > 0 || (found < 0 && errno == EAGAIN);
    }
    int available() {
        int count = 0;
        if (socket_ >= 0) ioctl(socket_, FIONREAD, &count);
        return count;
    }
    int read() {
        uint8_t byte;
        return read(&byte, 1) == 1 ? byte : -1;
    }
    int read(uint8_t *buffer, size_t size) { return recv(socket_, buffer, size, MSG_DONTWAIT); }
    size_t readBytes(char *buffer, size_t size) { return recv(socket_, buffer, size, MSG_WAITALL); }
    String readStringUntil(char end) {
        String text;
        char byte;
        while (recv(socket_, &byte, 1, 0) == 1 && byte != end) text += byte;
        return text;
    }
    size_t write(const uint8_t *buffer, size_t size) {
        ssize_t written = send(socket_, buffer, size, MSG_NOSIGNAL);
        return written < 0 ? 0 : written;
    }
    void flush() {}
    void setTimeout(uint32_t) {}
    void setNoDelay(bool) {}
    void stop() {
        if (socket_ >= 0) close(socket_);
        socket_ = -1;
    }
    IPAddress remoteIP() { return IPAddress(); }

  private:
    int socket_ = -1;
};

class WiFiClientSecure : public WiFiClient {
  public:
    void setCACert(const char *) {}
    void setCACertBundle(const uint8_t *, size_t = 0) {}
    void setCertificate(const char *) {}
    void setPrivateKey(const char *) {}
    void setInsecure() {}
    bool verify(const char *, const char *) { return true; }
};

class WiFiServer {};

enum { SHA1 };
void esp_sha(int, const unsigned char *text, size_t length, unsigned char *digest);
