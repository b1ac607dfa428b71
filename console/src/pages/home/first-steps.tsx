import { Text, Title } from '@mantine/core';
import { Trans } from '@lingui/react/macro';
import { Link } from 'wouter';
import { api, unwrap, useRead } from '../../api/client';
import { CopyText } from '../../ui/copy';
import { Panel } from '../../ui/page';

/** What to do on a node that nobody has used yet. */
export function FirstSteps() {
  const listeners = useRead(['listeners'], (signal) => unwrap(api.GET('/api/v1/listeners', { signal })));
  const mqtt = listeners.data?.data.find((listener) => listener.protocol === 'mqtt' && listener.running);
  const port = mqtt?.address.split(':').pop() ?? '1883';
  const host = location.hostname;
  return (
    <Panel title={<Trans>First steps</Trans>}>
      <div className="steps">
        <div>
          <Title order={3}>
            <Trans>1. Connect a client</Trans>
          </Title>
          <Text size="sm" c="dimmed" mb="xs">
            <Trans>Subscribe in one terminal, publish in another. Any MQTT client works.</Trans>
          </Text>
          <CopyText
            text={`mosquitto_sub -h ${host} -p ${port} -t 'demo/#' -v\nmosquitto_pub -h ${host} -p ${port} -t demo/hello -m hello`}
          />
        </div>
        <div>
          <Title order={3}>
            <Trans>2. Add a device</Trans>
          </Title>
          <Text size="sm" c="dimmed" mb="xs">
            <Trans>A device has credentials of its own, and its values are stored.</Trans>
          </Text>
          <Link href="/devices" className="link">
            <Trans>Open the devices</Trans>
          </Link>
        </div>
        <div>
          <Title order={3}>
            <Trans>3. Watch the traffic</Trans>
          </Title>
          <Text size="sm" c="dimmed" mb="xs">
            <Trans>Clients appear with their sessions, queues and subscriptions.</Trans>
          </Text>
          <Link href="/clients" className="link">
            <Trans>Open the clients</Trans>
          </Link>
        </div>
      </div>
    </Panel>
  );
}
