-- redis-lua (lua-redis) through the proxy: an old client without its own reconnects or pools.
local redis = require 'redis'

local host, port = os.getenv('LK_HOST'), tonumber(os.getenv('LK_PORT'))
local chars = {}
for i = 0, 255 do
    chars[#chars + 1] = string.char(i)
end
local BYTES = table.concat(chars) .. '\r\n$3\r\nfoo\r\n*1\r\n\0\0\r\n'

local function say(...)
    local fields = {}
    for i, field in ipairs({...}) do
        fields[i] = tostring(field):gsub('%s+', ' ')
    end
    print(table.concat(fields, '\t'))
    io.stdout:flush()
end

local function open(where)
    local client = redis.connect({host = host, port = where or port, timeout = 8})
    return client
end

local function text(value)
    if type(value) ~= 'table' then
        return tostring(value)
    end
    local out = {}
    for i, each in ipairs(value) do
        out[i] = text(each)
    end
    return '[' .. table.concat(out, ' ') .. ']'
end

local function expect(found, wanted)
    if text(found) ~= text(wanted) then
        error('expected ' .. text(wanted):sub(1, 200) .. ', got ' .. text(found):sub(1, 200), 2)
    end
end

local function refused(words, call)
    local good, why = pcall(call)
    if good or not tostring(why):find(words) then
        error('expected ' .. words .. ': ' .. tostring(why), 2)
    end
end

redis.commands.raw = redis.command('PING') -- replaced for each raw command below

local function raw(client, name, ...)
    client.raw = redis.command(name)
    return client:raw(...)
end

local c = open()

local features = {
    {'connect', function()
        local named = open()
        expect(named:ping(), true)
        expect(named:echo('hello'), 'hello')
        if os.getenv('LK_BACKEND') ~= 'cluster' then
            named:select(3)
            named:set('only', 'three')
            expect(c:get('only'), nil)
        end
        named:quit()
    end},
    {'auth', function()
        local login = open(tonumber(os.getenv('LK_LOGIN_PORT')))
        refused('NOAUTH', function() login:get('a') end)
        refused('WRONGPASS', function() login:auth('wrong') end)
        expect(login:auth(os.getenv('LK_LOGIN_PASSWORD')), true)
        expect(login:ping(), true)
    end},
    {'strings', function()
        expect(c:set('s', 'v'), true)
        expect(c:get('s'), 'v')
        expect(c:get('none'), nil)
        expect(c:append('s', 'w'), 2)
        expect(c:setnx('s', 'x'), false)
        expect(c:getset('s', 'y'), 'vw')
        expect(c:incrby('n', 42), 42)
    end},
    {'binary', function()
        expect(c:set(BYTES, BYTES), true)
        expect(c:get(BYTES) == BYTES, true)
    end},
    {'large', function()
        local value = BYTES:rep(4096)
        c:set('large', value)
        expect(c:get('large') == value, true)
    end},
    {'hashes', function()
        expect(c:hmset('h', 'a', 1, 'b', 'two'), true)
        expect(c:hgetall('h').b, 'two')
        expect(c:hdel('h', 'a'), 1)
    end},
    {'lists', function()
        expect(c:rpush('l', 'a', 'b', 'c'), 3)
        expect(c:lrange('l', 0, -1), {'a', 'b', 'c'})
        expect(c:lpop('l'), 'a')
    end},
    {'sets', function()
        expect(c:sadd('{s}1', 'a', 'b'), 2)
        expect(c:sadd('{s}2', 'b', 'c'), 2)
        expect(c:sinter('{s}1', '{s}2'), {'b'})
    end},
    {'zsets', function()
        expect(c:zadd('z', 1, 'a', 2.5, 'b'), 2)
        expect(c:zrange('z', 0, -1), {'a', 'b'})
    end},
    {'streams', function()
        expect(raw(c, 'XADD', 'x', '5-1', 'f', 'v'), '5-1')
        expect(raw(c, 'XRANGE', 'x', '-', '+'), {{'5-1', {'f', 'v'}}})
    end},
    {'expiry', function()
        c:setex('e', 100, 'v')
        expect(c:ttl('e') > 95, true)
        expect(c:persist('e'), true)
    end},
    {'multikey', function()
        expect(c:mset('a', 1, 'b', 2, 'c', 3), true)
        expect(c:mget('a', 'b', 'c'), {1, 2, 3})
        expect(c:del('a', 'b', 'c', 'none'), 3)
    end},
    {'pipeline', function()
        local replies = c:pipeline(function(p)
            for i = 0, 249 do
                p:set('p:' .. i, i)
                p:incr('count')
                p:get('p:' .. i)
                p:mget('p:' .. i, 'p:0')
            end
        end)
        expect(#replies, 1000)
        for i = 0, 249 do
            expect({replies[4 * i + 2], replies[4 * i + 3], replies[4 * i + 4]}, {i + 1, i, {i, 0}})
        end
    end},
    {'scripts', function()
        expect(c:eval("return redis.call('INCRBY', KEYS[1], ARGV[1])", 1, 'sc', 42), 42)
        local sha = c:script('load', 'return {KEYS[1], ARGV[1], 3}')
        expect(c:evalsha(sha, 1, 'sc', 'arg'), {'sc', 'arg', 3})
        refused('NOSCRIPT', function() c:evalsha(('0'):rep(40), 0) end)
    end},
    {'scan', function()
        for i = 0, 499 do
            c:set('scan:' .. i, 1)
        end
        local found, count, cursor = {}, 0, '0'
        repeat
            local reply = raw(c, 'SCAN', cursor, 'MATCH', 'scan:*', 'COUNT', 20)
            cursor = reply[1]
            for _, key in ipairs(reply[2]) do
                count = count + (found[key] and 0 or 1)
                found[key] = true
            end
        until cursor == '0'
        expect(count, 500)
    end},
    {'errors', function()
        c:set('err', 'text')
        refused('WRONGTYPE', function() c:lpush('err', 1) end)
        refused('unknown command', function() raw(c, 'NOSUCHCOMMAND', 'a') end)
        expect(c:get('err'), 'text')
    end},
    {'pool', function()
        local pool = {}
        for i = 1, 8 do
            pool[i] = open()
        end
        for i = 0, 799 do
            pool[i % 8 + 1]:incr('pool')
        end
        expect(c:get('pool'), 800)
    end},
    {'multi', function()
        local replies = open():transaction(function(t)
            t:set('{t}a', 1)
            t:incr('{t}a')
        end)
        expect(replies[2], 2)
    end},
    {'watch', function()
        local mine = open()
        c:set('w', 1)
        local replies = mine:transaction({cas = true, watch = 'w', retry = 1}, function(t)
            local value = t:get('w')
            if value == '1' then
                c:set('w', 10)
            end
            t:multi()
            t:set('w', value + 1)
        end)
        expect(#replies, 1)
        expect(c:get('w'), 11)
    end},
    {'blocking', function()
        local mine = open()
        expect(mine:blpop('bl', 1), nil)
        c:rpush('bl', 'there')
        expect(mine:blpop('bl', 1), {'bl', 'there'})
    end},
    {'pubsub', function()
        local got
        local mine = open()
        for message, abort in mine:pubsub({subscribe = {'news'}}) do
            if message.kind == 'subscribe' then
                c:publish('news', BYTES)
            else
                got = message.payload
                abort()
            end
        end
        expect(got == BYTES, true)
    end},
    {'reconnect', function()
        c:set('before', 1)
        print('restart')
        io.stdout:flush()
        assert(io.read('*l'), 'no restart')
        expect(pcall(c.get, c, 'before'), false) -- the application connects again itself
        c = open()
        expect(c:get('before'), 1)
    end},
}

say('version', redis._VERSION:match('%S+$'))
for _, feature in ipairs(features) do
    local good, why = pcall(feature[2])
    if good then
        say(feature[1], 'ok')
    else
        say(feature[1], 'fail', type(why) == 'table' and (why.message or text(why)) or why)
    end
end
