import './first-steps.css';

import { Text, Title } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import type { ReactNode } from 'react';
import { Link } from 'wouter';
import { useMqttPort } from '../../api/mqtt-port';
import { CopyText } from '../../ui/copy';
import { Panel } from '../../ui/page';
import { QrCode } from '../../ui/qr-code';

const loopback = ['localhost', '127.0.0.1', '[::1]'];

const ruleCommand = (
  host: string,
  port: string,
) => `tidegate ctl rules add warm 'sql=SELECT payload.celsius AS celsius FROM "demo/+" WHERE payload.celsius > 30' 'actions=[{"kind": "republish", "topic": "demo/warnings/warm"}]'
mosquitto_pub -h ${host} -p ${port} -t demo/oven -m '{"celsius": 75}'`;

/** What to do on a node that nobody has used yet. */
export default function FirstSteps() {
  const { t } = useLingui();
  const port = useMqttPort();
  const host = location.hostname;
  if (port === undefined) return null;
  const url = `mqtt://${host}:${port}`;
  return (
    <Panel title={<Trans>First steps</Trans>}>
      <div className="steps">
        <Step title={<Trans>Connect a client</Trans>}>
          <Text size="sm" c="dimmed" mb="xs">
            <Trans>Subscribe in one terminal, publish in another. Any MQTT client works.</Trans>
          </Text>
          <CopyText
            text={`mosquitto_sub -h ${host} -p ${port} -t 'demo/#' -v\nmosquitto_pub -h ${host} -p ${port} -t demo/hello -m hello`}
          />
          <div className="qr-row">
            <QrCode text={url} label={t`QR code with the address ${url}`} />
            <Text size="sm" c="dimmed">
              {loopback.includes(host) ? (
                <Trans>
                  The address for an app on a phone. This console is open on the node's own machine; open it at an
                  address that the phone can reach, and let the MQTT listener accept other machines.
                </Trans>
              ) : (
                <Trans>The address for an app on a phone: {url}</Trans>
              )}
            </Text>
          </div>
        </Step>
        <Step title={<Trans>Add a device</Trans>}>
          <Text size="sm" c="dimmed" mb="xs">
            <Trans>A device has credentials of its own, and its values are stored.</Trans>
          </Text>
          <Link href="/devices" className="link">
            <Trans>Open the devices</Trans>
          </Link>
        </Step>
        <Step title={<Trans>Try a rule</Trans>}>
          <Text size="sm" c="dimmed" mb="xs">
            <Trans>A rule selects messages with SQL and publishes, stores or forwards the result.</Trans>
          </Text>
          <CopyText text={ruleCommand(host, port)} />
        </Step>
        <Step title={<Trans>Or look around first</Trans>}>
          <Text size="sm" c="dimmed" mb="xs">
            <Trans>
              This fills the node with 50 live devices, alarms and rules. The same command with --remove deletes them
              again.
            </Trans>
          </Text>
          <CopyText text="tidegate demo" />
          <Text size="sm" mt="xs">
            <Link href="/simulations/demo" className="link">
              <Trans>Or start it here</Trans>
            </Link>
          </Text>
        </Step>
      </div>
    </Panel>
  );
}

function Step({ title, children }: { title: ReactNode; children: ReactNode }) {
  return (
    <div>
      <Title order={3}>{title}</Title>
      {children}
    </div>
  );
}
