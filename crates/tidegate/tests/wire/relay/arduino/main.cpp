// Runs the sketch, which is in `sketch.ino`, as the Arduino core does.
#include <Arduino.h>

#include "sketch.ino"

// The core brings these two libraries along; this is the copy of the library for boards without them.
#undef ESP32
extern "C" {
#include <libb64/cencode.c>
#include <libsha1/libsha1.c>
}

SerialPort Serial;
EspClass ESP;
WiFiClass WiFi;

void esp_sha(int, const unsigned char *text, size_t length, unsigned char *digest) {
    SHA1_CTX context;
    SHA1Init(&context);
    SHA1Update(&context, text, length);
    SHA1Final(digest, &context);
}

int main() {
    setup();
    for (;;) {
        loop();
        usleep(1000);
    }
}
